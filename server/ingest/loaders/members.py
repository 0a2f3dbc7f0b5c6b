"""The blocks of a file that lies in another one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from server.domain import Block
from server.ingest.loaders.base import Read
from server.ingest.loaders.headings import HEADING


def member_blocks(data: bytes, name: str, read: Read, warnings: list[str]) -> Iterator[Block]:
    """What `read` makes of a member, under a heading with its name; its warnings are added to those given.

    Raises LoadError before the first block.
    """
    document = read(data, name)
    warnings.extend(f"{name}: {warning}" for warning in document.warnings)
    yield Block(name, headings=(name,), metadata={"kind": HEADING})
    yield from (replace(block, headings=(name, *block.headings)) for block in document.blocks)
