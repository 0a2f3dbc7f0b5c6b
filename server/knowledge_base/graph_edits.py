"""Changes that people make to a graph. They are kept apart from what chunks say, so that each can be undone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from server.db import graphs
from server.domain import Edits, KnowledgeBase, Mention, Relation
from server.errors import AlreadyExists, InvalidRequest, NotFound
from server.graph.graph import Graph, Pair
from server.graph.identity import LONGEST_NAME, entity_key
from server.graph.resolver import SENSE
from server.knowledge_base.context import KBContext
from server.knowledge_base.graph_builds import queue_build
from server.knowledge_base.graph_made import opened

MOST_IMPORTED = 200_000
"""Entities and relations in one import; all that people add is held in memory."""


class GraphEditor:
    """Changes the graph of one knowledge base. Entities are called by their names, or by their ids where a name means
    several; NotFound is raised for one that is not there."""

    def __init__(self, context: KBContext, kb: KnowledgeBase) -> None:
        self._context = context
        self._kb = kb

    def merge(self, names: Sequence[str], into: str) -> list[str]:
        """Treat entities as one; returns the names of those that went."""
        with opened(self._context, self._kb) as index:
            target = known(index.graph, into)
            keys = {key: index.graph.shown(key).name for name in names if (key := known(index.graph, name)) != target}

        def merged(edits: Edits) -> Edits:
            moved = {source: target if goal in keys else goal for source, goal in edits.merged.items()}
            return replace(edits, merged=moved | dict.fromkeys(keys, target))

        self._change(merged)
        return sorted(keys.values())

    def split(self, name: str) -> list[str]:
        """Undo merges into an entity or of one, whoever made them; returns the keys that are on their own now."""
        with opened(self._context, self._kb) as index:
            key = next(iter(index.graph.keys_of(name)), entity_key(name))
            folded = index.graph.resolver.aliases()
        alone = {source for source, goal in folded.items() if key in (source, goal)}
        freed: set[str] = set(alone)

        def apart(edits: Edits) -> Edits:
            freed.update(source for source, goal in edits.merged.items() if {key, entity_key(name)} & {source, goal})
            kept = {source: goal for source, goal in edits.merged.items() if source not in freed}
            return replace(edits, merged=kept, apart=edits.apart | alone)

        self._change(apart)
        return sorted(freed)

    def create_entity(self, entity: Mention) -> None:
        """Add an entity that no chunk names; one that was deleted comes back.

        Raises:
            AlreadyExists: there is one of that name; InvalidRequest: this is no name.
        """
        key = _key(entity.name)
        with opened(self._context, self._kb) as index:
            if index.graph.keys_of(entity.name):
                raise AlreadyExists(f"图谱中已有 {entity.name} / the entity is there already: {entity.name}")
        self._change(
            lambda edits: replace(edits, entities={**edits.entities, key: entity}, hidden=edits.hidden - {key})
        )

    def add_all(self, entities: Sequence[Mention], relations: Sequence[Relation]) -> dict[str, int]:
        """Add what is not there; what is there stays as it is. Returns how many of each were new.

        Raises:
            InvalidRequest: there are more than MOST_IMPORTED.
        """
        if len(entities) + len(relations) > MOST_IMPORTED:
            raise InvalidRequest(
                f"一次最多导入 {MOST_IMPORTED} 项 / at most {MOST_IMPORTED} items can be imported at a time"
            )
        with opened(self._context, self._kb) as index:
            graph = index.graph
            names = {one.name: _first(graph.keys_of(one.name)) for one in entities}
            for relation in relations:
                for name in (relation.source, relation.target):
                    names.setdefault(name, _first(graph.keys_of(name)))
            known_pairs = set(graph.edges)
        new = {_key(one.name): one for one in entities if names[one.name] is None}
        of = {name: key or _key(name) for name, key in names.items()}
        pairs = {(of[one.source], of[one.target]): one for one in relations if of[one.source] != of[one.target]}
        fresh = {pair: one for pair, one in pairs.items() if pair not in known_pairs}

        def added(edits: Edits) -> Edits:
            return replace(
                edits, entities={**new, **edits.entities}, relations={**fresh, **edits.relations},
                hidden=edits.hidden - new.keys(), hidden_pairs=edits.hidden_pairs - fresh.keys(),
            )  # fmt: skip

        self._change(added)
        return {"entities": len(new), "relations": len(fresh)}

    def edit_entity(self, name: str, entity: Mention) -> None:
        """Show an entity with another type or description, or under another name; what is empty stays as it is."""
        with opened(self._context, self._kb) as index:
            key = known(index.graph, name)
            before = index.graph.shown(key)
        after = Mention(
            entity.name or before.name, entity.type or before.type, entity.description or before.description
        )
        new = _key(after.name)
        moved = {} if new == key.partition(SENSE)[0] else {key: new}

        def edited(edits: Edits) -> Edits:
            others = {known_key: one for known_key, one in edits.entities.items() if known_key != key}
            merged = {source: new if goal in moved else goal for source, goal in edits.merged.items()}
            return replace(edits, entities={**others, (new if moved else key): after}, merged={**merged, **moved})

        self._change(edited)

    def delete_entity(self, name: str) -> None:
        """Leave an entity out of the graph, with its relations, whatever chunks say."""
        with opened(self._context, self._kb) as index:
            key = known(index.graph, name)

        def without(edits: Edits) -> Edits:
            kept = {at: one for at, one in edits.entities.items() if at != key}
            relations = {pair: one for pair, one in edits.relations.items() if key not in pair}
            return replace(edits, entities=kept, relations=relations, hidden=edits.hidden | {key})

        self._change(without)

    def put_relation(self, relation: Relation, *, new: bool) -> None:
        """Add a relation between two entities that are there, or change what is shown of one.

        Raises:
            AlreadyExists: a `new` one is there; NotFound: another is not; InvalidRequest: both ends are the same.
        """
        pair, named = self._ends(relation.source, relation.target)
        with opened(self._context, self._kb) as index:
            if (pair in index.graph.edges) == new:
                there = "已有此关系 / the relation is there already" if new else "没有此关系 / no such relation"
                raise (AlreadyExists if new else NotFound)(f"{there}: {relation.source} → {relation.target}")
        shown = replace(relation, source=named[0], target=named[1])
        self._change(
            lambda edits: replace(
                edits, relations={**edits.relations, pair: shown}, hidden_pairs=edits.hidden_pairs - {pair}
            )
        )

    def delete_relation(self, source: str, target: str) -> None:
        """Leave a relation out of the graph, whatever chunks say."""
        pair, _ = self._ends(source, target)
        with opened(self._context, self._kb) as index:
            if pair not in index.graph.edges:
                raise NotFound(f"没有此关系 / no such relation: {source} → {target}")

        def without(edits: Edits) -> Edits:
            kept = {at: one for at, one in edits.relations.items() if at != pair}
            return replace(edits, relations=kept, hidden_pairs=edits.hidden_pairs | {pair})

        self._change(without)

    def _ends(self, source: str, target: str) -> tuple[Pair, tuple[str, str]]:
        """The keys and the names of two entities."""
        with opened(self._context, self._kb) as index:
            pair = known(index.graph, source), known(index.graph, target)
            names = index.graph.nodes[pair[0]].name, index.graph.nodes[pair[1]].name
        if pair[0] == pair[1]:
            raise InvalidRequest(f"关系的两端是同一个实体 / both ends are the same entity: {source}")
        return pair, names

    def _change(self, change: Callable[[Edits], Edits]) -> None:
        with self._context.db.write() as sql:
            graphs.set_edits(sql, self._kb.generation, change(graphs.edits(sql, self._kb.id)))
            queue_build(sql, self._context, self._kb, again=True)  # for what follows from the graph


def known(graph: Graph, name: str) -> str:
    """The key of an entity.

    Raises:
        NotFound: there is none of that name; InvalidRequest: there are several.
    """
    keys = graph.keys_of(name)
    if not keys:
        raise NotFound(f"图谱中没有 {name} / no such entity: {name}")
    if len(keys) > 1:
        raise InvalidRequest(f"{name} 指多个实体，请用 id / {name} means several, use an id: {', '.join(keys)}")
    return keys[0]


def _first(keys: Sequence[str]) -> str | None:
    return keys[0] if keys else None


def _key(name: str) -> str:
    key = entity_key(name)
    if not key or len(name) > LONGEST_NAME:
        raise InvalidRequest(f"实体名称无效 / this is no name: {name[:LONGEST_NAME]}")
    return key
