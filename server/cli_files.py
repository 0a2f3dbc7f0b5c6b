"""Files and folders that the command line brings into knowledge bases."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from server.names import is_junk

if TYPE_CHECKING:
    from server.domain import Job
    from server.knowledge_base.manifest import Difference
    from server.knowledge_base.operations import Outcome
    from server.runtime import Runtime

errors = Console(stderr=True)


def ensure_kb(name: str, vs_type: str | None, embed_model: str | None) -> None:
    """Make a knowledge base unless it is there."""
    from server.knowledge_base.factory import KBServiceFactory

    if KBServiceFactory.get_service_by_name(name) is None:
        default = KBServiceFactory.context().settings.default_vs_type
        KBServiceFactory.get_service(name, vs_type or default, embed_model).create_kb()


def found(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """(name in the knowledge base, path) of files and of all files in folders but hidden and lock files."""
    files: list[tuple[str, Path]] = []
    for path in paths:
        if path.is_file():
            files.append((path.name, path))
            continue
        inside = (item for item in sorted(path.rglob("*")) if item.is_file())
        named = ((item.relative_to(path), item) for item in inside)
        files += [(name.as_posix(), item) for name, item in named if not is_junk(name.as_posix())]
    return files


def ingest(runtime: Runtime, name: str, files: Sequence[tuple[str, Path]], *, override: bool) -> dict[str, str]:
    """Upload and ingest with a progress bar while the workers run; returns the reasons of files that failed."""
    from server.knowledge_base.operations import Outcome, Upload, service_of

    service = runtime.service
    kb = service_of(name)
    outcome = Outcome()
    for label, path in files:
        with path.open("rb") as stream:
            one = service.operations.upload(kb, [Upload(label, stream)], kb.split_options(), override=override)
        outcome.jobs |= one.jobs
        outcome.failed |= one.failed
    return watch_files(runtime, outcome)


def watch_files(runtime: Runtime, outcome: Outcome) -> dict[str, str]:
    """Show how far files are until all jobs have ended; returns the reasons of those that failed."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    ended: list[Job] = []
    with Progress(*columns, console=errors) as bar:
        files = bar.add_task("文件 files", total=len(outcome.jobs))
        chunks = bar.add_task("片段 chunks", total=None)
        for jobs in runtime.service.runner.wait_blocking(outcome.jobs):
            ended = [job for job in jobs if job.ended]
            bar.update(files, completed=len(ended))
            bar.update(
                chunks, completed=sum(job.finished for job in jobs), total=sum(job.total for job in jobs) or None
            )
    return outcome.add_ended(ended)


def digests(files: Mapping[str, Path]) -> dict[str, str]:
    """SHA-256 of each file, in hex."""
    read = {}
    for label, path in files.items():
        with path.open("rb") as stream:
            read[label] = hashlib.file_digest(stream, "sha256").hexdigest()
    return read


def sync(
    runtime: Runtime, name: str, files: Mapping[str, Path], difference: Difference, *, delete: bool
) -> dict[str, str]:
    """Bring in what is new or has changed, and take out what is gone if that is wanted, while the workers run; returns
    the reasons of files that failed."""
    from server.knowledge_base.operations import service_of

    failed = ingest(runtime, name, [(label, files[label]) for label in difference.upload], override=True)
    if delete:
        failed |= runtime.service.operations.delete(service_of(name), difference.delete, delete_content=True)
    return failed
