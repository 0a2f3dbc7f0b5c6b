"""What is said of an entity or a relation, by the chunks that may be used."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence

from server.graph.graph import Graph, Pair

LONG = 4000
"""Characters that are shown at most; where more is said a language model makes one text of it, if there is one."""

Summaries = Mapping[str, tuple[bytes, str]]
"""(digest of the descriptions that it was made of, text) by the entity's key."""


def digest_of(descriptions: Sequence[str]) -> bytes:
    """What tells whether a summary is of these descriptions."""
    return hashlib.sha256("\n".join(descriptions).encode()).digest()


def with_much_to_say(graph: Graph) -> Iterator[tuple[str, Sequence[str]]]:
    """(key, descriptions) of the entities of which too much is said to be shown."""
    for key, node in graph.nodes.items():
        if len(node.chunks) > 1:
            texts = graph.descriptions(key)
            if sum(map(len, texts)) > LONG:
                yield key, texts


def description_of(graph: Graph, key: str, summaries: Summaries, allowed: Collection[int] | None = None) -> str:
    """What is said of an entity. A summary is shown only while it is of all that chunks say, and only to those who may
    see all of them."""
    given = graph.shown(key).description
    if given:
        return given
    texts = graph.descriptions(key, allowed)
    digest, summary = summaries.get(key, (b"", ""))
    if summary and allowed is None and digest == digest_of(texts):
        return summary
    return _shortened(texts)


def description_between(graph: Graph, pair: Pair, allowed: Collection[int] | None = None) -> str:
    """What is said of a relation."""
    given = graph.edits.relations.get(pair)
    if given is not None and given.description:
        return given.description
    return _shortened(graph.descriptions_of(pair, allowed))


def _shortened(texts: Sequence[str]) -> str:
    """As many as there is room for; those that say most first, for a short one is often part of a longer one."""
    room = LONG
    kept: list[str] = []
    for text in sorted(texts, key=len, reverse=True):
        if len(text) <= room and not any(text in longer for longer in kept):
            kept.append(text)
            room -= len(text) + 1
    return "\n".join(text for text in texts if text in kept)
