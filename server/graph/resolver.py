"""Which entity a chunk means by a name, decided from all that the chunks say at the moment.

Names that share a key (`identity.entity_key`) are one entity. Beyond that,

- a key is folded into another where chunks use them as two names of one entity ("Mark Twain, born Samuel Clemens"),
  unless the name is given to several entities ("the company");
- a key is split where chunks speak of different kinds of things by it: Washington, a person and a state;
- people merge, keep apart and hide entities (`Edits`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from server.domain import Edits, Extraction, Mention
from server.graph.identity import entity_key

_KINDS = {
    kind: names[0]
    for names in (
        ("person", "people", "人物", "人", "人名"),
        ("location", "place", "geo", "country", "city", "地点", "地名", "地理", "国家", "城市"),
        ("organization", "organisation", "company", "institution", "组织", "机构", "公司"),
    )
    for kind in names
}
"""Types of which nothing can have two."""
_RARE = 5
"""One mention in so many may be a mistake of the extractor, and does not make a homonym."""
SENSE = "#"
"""Between a key and the kind of thing that it means; no key has it."""


class Resolver:
    """Notes what chunks say, and tells by `settle` whose entities that changed."""

    def __init__(self, edits: Edits) -> None:
        self._edits = edits
        self._said: defaultdict[str, dict[int, str]] = defaultdict(dict)
        self._aliases: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._folded: dict[str, str] = {}
        self._members: dict[str, set[str]] = {}
        self._senses: dict[str, tuple[str, ...]] = {}
        self._touched: set[str] = set()
        self._names_changed = True

    def note(self, chunk_id: int, found: Extraction) -> None:
        """A chunk says this now."""
        for mention in found.mentions:
            key, kind = entity_key(mention.name), _KINDS.get(mention.type.casefold(), "")
            before = self._said[key].get(chunk_id, kind)
            self._said[key][chunk_id] = kind if before == kind else ""
            self._touched.add(key)
            for alias in _aliases_of(mention, key):
                self._aliases[alias][key] += 1
                self._names_changed = True

    def forget(self, chunk_id: int, found: Extraction) -> None:
        """A chunk does not say this any more."""
        for mention in found.mentions:
            key = entity_key(mention.name)
            self._said[key].pop(chunk_id, None)
            self._touched.add(key)
            if not self._said[key]:
                del self._said[key]
            for alias in _aliases_of(mention, key):
                self._aliases[alias][key] -= 1
                self._aliases[alias] += Counter()  # drops what has come to nothing
                if not self._aliases[alias]:
                    del self._aliases[alias]
                self._names_changed = True

    def settle(self) -> set[int]:
        """Decide anew what the changes since the last time may have changed; returns the chunks that it concerns."""
        left, moved = self._fold() if self._names_changed else (set(), set())
        touched, self._touched, self._names_changed = self._touched | moved | left, set(), False
        concerned = {chunk for key in moved for chunk in self._said.get(key, ())}
        for base in {self._base(key) for key in touched}:
            senses = self._senses_of(base)
            if senses != self._senses.get(base, ()):
                concerned |= {chunk for key in self._keys_of(base) for chunk in self._said.get(key, ())}
                self._senses[base] = senses
                if not senses:
                    del self._senses[base]
        return concerned

    def entity_in(self, chunk_id: int, name: str) -> str | None:
        """The entity that a chunk means by a name that it says; None for one that people hid."""
        base = self._base(entity_key(name))
        senses = self._senses.get(base)
        if senses:
            kinds = {self._said[key].get(chunk_id, "") for key in self._keys_of(base) if key in self._said}
            kind = next((kind for kind in senses if kind in kinds), senses[0])
            base = self._merged(f"{base}{SENSE}{kind}")
        return None if base in self._edits.hidden else base

    def entities_of(self, name: str) -> list[str]:
        """The entities that a name may mean."""
        base = self._base(entity_key(name))
        senses = self._senses.get(base, ())
        return list(dict.fromkeys(self._merged(f"{base}{SENSE}{kind}") for kind in senses)) or [base]

    def aliases(self) -> Mapping[str, str]:
        """Which keys are folded into which because chunks say so."""
        return self._folded

    def _base(self, key: str) -> str:
        return self._merged(self._folded.get(self._merged(key), self._merged(key)))

    def _merged(self, key: str) -> str:
        return self._edits.merged.get(key, key)

    def _keys_of(self, base: str) -> Iterable[str]:
        return self._members.get(base, {base})

    def _fold(self) -> tuple[set[str], set[str]]:
        """Join keys that are names of one entity; returns (the keys where some belonged, those that belong elsewhere
        now)."""
        joined = _joined(self._aliases, self._edits.apart)
        concerned = self._folded.keys() | joined.keys() | self._edits.merged.keys()
        before = {key: self._base(key) for key in concerned}
        self._folded, self._members = joined, {}
        for key in concerned:
            base = self._base(key)
            self._members.setdefault(base, {base}).add(key)
        moved = {key for key in concerned if before[key] != self._base(key)}
        return {before[key] for key in moved}, moved

    def _senses_of(self, base: str) -> tuple[str, ...]:
        """The kinds of things that chunks mean by a key, the most frequent first; none when it is one thing."""
        by_chunk: defaultdict[int, set[str]] = defaultdict(set)
        for key in self._keys_of(base):
            for chunk_id, kind in self._said.get(key, {}).items():
                if kind:
                    by_chunk[chunk_id].add(kind)
        counted = Counter(kind for kinds in by_chunk.values() for kind in kinds)
        kept = [kind for kind, count in counted.items() if count * _RARE >= counted.total()]
        together = any(len(kinds) > 1 for kinds in by_chunk.values())  # one context: more likely one thing
        if len(kept) < 2 or together or base in self._edits.apart:
            return ()
        return tuple(sorted(kept, key=lambda kind: (-counted[kind], kind)))


def _aliases_of(mention: Mention, key: str) -> set[str]:
    return {alias for name in mention.aliases if (alias := entity_key(name)) and alias != key}


def _joined(aliases: Mapping[str, Counter[str]], apart: Iterable[str]) -> dict[str, str]:
    """The key that stands for each of several names of one entity: the least of them. A name that is given to more than
    one entity says nothing, and those in `apart` stay alone."""
    parent: dict[str, str] = {}

    def root(key: str) -> str:
        while parent.get(key, key) != key:
            key = parent[key]
        return key

    kept_apart = set(apart)
    for alias, targets in sorted(aliases.items()):
        (target, *others) = targets
        if not others and not {alias, target} & kept_apart:
            least, most = sorted((root(alias), root(target)))
            parent[most] = least
            parent.setdefault(least, least)
    return {key: root(key) for key in parent if root(key) != key}
