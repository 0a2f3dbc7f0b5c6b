"""Compares a client's files with those of a knowledge base, by name and SHA-256, without sending them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from server.db import files
from server.errors import InvalidName
from server.knowledge_base.service import KBService
from server.names import file_label

_HELD = ("ready", "keyword", "pending")
"""States of a file that is searchable or on its way."""


@dataclass
class Difference:
    """What has to be done so that a knowledge base holds just the client's files; names are the client's own in
    `upload`, `unchanged` and `invalid` (with the reason), the knowledge base's in `delete`."""

    upload: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    delete: list[str] = field(default_factory=list)
    invalid: dict[str, str] = field(default_factory=dict)


def compare(service: KBService, manifest: Mapping[str, str]) -> Difference:
    """Hold (name → SHA-256 in hex) against a knowledge base.

    Raises:
        NotFound: there is no such knowledge base.
    """
    kb, found, present = service.kb(), Difference(), set[str]()
    with service.context.db.read() as sql:
        known = {file.name: file for file in files.list_all(sql, kb.id)}
    for name, digest in manifest.items():
        try:
            label = file_label(name)
        except InvalidName as error:
            found.invalid[name] = error.message
            continue
        present.add(label)
        file = known.get(label)
        same = file is not None and file.sha256 == digest.lower() and file.state in _HELD
        (found.unchanged if same else found.upload).append(name)
    found.delete = [name for name in known if name not in present]
    return found
