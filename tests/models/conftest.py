"""The embedded model, built once for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from server.models.e5 import E5Model

# The reference engine starts a spinning thread per core when it is loaded, whatever it is asked for.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def e5_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("e5")


@pytest.fixture(scope="session")
def e5(e5_directory: Path) -> E5Model:
    return E5Model(e5_directory)
