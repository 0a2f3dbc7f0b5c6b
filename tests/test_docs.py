"""The documentation is true: its commands run, its lists are complete, its links lead somewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from configs import Settings
from configs.settings import EMBEDDED, PROJECT_ROOT
from server.app import create_app
from server.ingest.loaders.factory import SUPPORTED_EXTENSIONS
from tests.conftest import ServerProcess

PAGES = sorted([*PROJECT_ROOT.glob("*.md"), *(PROJECT_ROOT / "docs").glob("*.md")])
PATIENCE = 600  # seconds for a script of five commands: a shared machine may be very slow for a while
READMES = [PROJECT_ROOT / "README.md", PROJECT_ROOT / "README.zh-CN.md"]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The service as `make run` starts it; one for all pages, for it makes its model and reads its samples first."""
    server = ServerProcess(tmp_path_factory.mktemp("readme"), default_embed_model=EMBEDDED)
    try:
        yield server.start("--samples", patience=PATIENCE)
    finally:
        server.kill()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the commands find where they are run: of the documentation one page, for each is embedded in earnest."""
    (tmp_path / "docs").mkdir()
    for path in (*READMES, PROJECT_ROOT / "docs" / "operations.md"):
        shutil.copy(path, tmp_path / path.relative_to(PROJECT_ROOT))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("page", READMES, ids=lambda page: page.name)
def test_the_commands_of_the_readme_work(page: Path, served: ServerProcess, checkout: Path) -> None:
    zhiku = f"{sys.executable} -m server.cli"
    path = os.pathsep.join(filter(None, (str(PROJECT_ROOT), os.environ.get("PYTHONPATH"))))
    scripts = [text for text in blocks(page, "sh") if "make run" not in text]
    assert len(scripts) == 3
    # a project has settings of its own; the others are told where the service's are
    plain = {name: value for name, value in os.environ.items() if not name.startswith("ZHIKU_")}
    environments = [served.environment, served.environment, plain]
    outputs = []
    for script, environment in zip(scripts, environments, strict=True):
        text = (
            script.replace(":7861", f":{served.port}").replace(".venv/bin/zhiku", zhiku).replace("curl ", "curl -sS ")
        )
        done = subprocess.run(
            ["bash", "-eu", "-c", text],
            cwd=checkout,
            env={**environment, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        outputs.append(done.stdout)
        assert done.returncode == 0, done.stderr
    assert '"code":200' in outputs[0]
    assert "3.11" in outputs[0]
    assert "[1]" in outputs[0]
    assert '"docs"' in outputs[0]
    assert "[1]" in outputs[1]
    assert "3.11" in outputs[2]
    assert re.search(r"\[\d\] README", outputs[2])


@pytest.mark.slow
@pytest.mark.parametrize("page", READMES, ids=lambda page: page.name)
def test_the_python_of_the_readme_works(page: Path, served: ServerProcess) -> None:
    (text,) = blocks(page, "python")
    done = subprocess.run(
        [sys.executable, "-c", text.replace(":7861", f":{served.port}")],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "[1]" in done.stdout
    assert " True http://127.0.0.1" in done.stdout


@pytest.mark.parametrize("page", READMES, ids=lambda page: page.name)
def test_the_settings_of_the_readme_are_settings(page: Path) -> None:
    for text in blocks(page, "yaml"):
        assert Settings(**yaml.safe_load(text)).default_llm == "qwen3"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_every_route_is_in_the_guide(tmp_path: Path) -> None:
    text = (PROJECT_ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    paths = create_app(Settings(data_dir=tmp_path)).openapi()["paths"]
    documented = set(re.findall(r"`(?:GET|POST|PATCH|DELETE) (/[^`]*)`", text))
    assert documented == set(paths)


def test_the_readme_names_the_formats() -> None:
    named = {".txt", ".md", ".html", ".csv", ".json", ".pdf", ".docx"}
    assert named <= SUPPORTED_EXTENSIONS
    text = (PROJECT_ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert all(extension[1:] in text for extension in named)


def test_pinned_versions_name_no_index() -> None:
    lines = (PROJECT_ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert all(line.startswith("#") or re.fullmatch(r"[A-Za-z0-9._-]+==[^\s;]+", line) for line in lines)
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    wanted = re.findall(r'^    "([A-Za-z0-9_-]+)', (PROJECT_ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert {name.lower().replace("_", "-") for name in wanted} <= pinned


def test_the_compose_file_keeps_to_loopback() -> None:
    compose = yaml.safe_load((PROJECT_ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    service = compose["services"]["zhiku"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    dockerfile = (PROJECT_ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert "USER zhiku" in dockerfile
    assert "HEALTHCHECK" in dockerfile
