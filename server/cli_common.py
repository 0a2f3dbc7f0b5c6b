"""What the commands share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from configs import Settings

if TYPE_CHECKING:
    from server.runtime import Runtime

DataDir = Annotated[Path | None, typer.Option("--data-dir", help="the data root (default: ZHIKU_DATA_DIR or configs)")]


def settings_of(data_dir: Path | None, **values: Any) -> Settings:
    """The settings with what the command line says."""
    given: dict[str, Any] = {
        name: value for name, value in {"data_dir": data_dir, **values}.items() if value is not None
    }
    return Settings(**given)


@contextmanager
def opened_runtime(data_dir: Path | None) -> Iterator[Runtime]:
    """The parts of the service without its HTTP edge, for one command."""
    from server.runtime import Runtime

    runtime = Runtime.build(settings_of(data_dir))
    try:
        yield runtime
    finally:
        runtime.service.extractors.close()
        runtime.service.context.close()


@contextmanager
def working(runtime: Runtime) -> Iterator[None]:
    """The workers run meanwhile; what they have not finished then is taken up by the next who runs some."""
    runtime.service.runner.start()
    try:
        yield
    finally:
        runtime.service.runner.stop()
