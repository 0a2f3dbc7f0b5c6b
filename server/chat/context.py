"""What the model is shown: numbered sources between marker lines and earlier turns, within the model's context."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from server.domain import Fact, Hit
from server.graph.facts import as_lines
from server.models.chat import Message, Role
from server.models.thinking import strip_thinking
from server.tokens import estimate_tokens

_OPENING = "助手的开场白 / the assistant's opening: "


_GRAPH = "知识图谱（出处见方括号）/ from the knowledge graph, with the sources that say it:"


def context_of(hits: Sequence[Hit], facts: Sequence[Fact] = ()) -> str:
    """The sources, numbered from 1, and what a graph says with the numbers of the sources that bear it out, between two
    marker lines that no document can foresee."""
    parts = [f"[{number}] ({hit.file_name})\n{hit.text}" for number, hit in enumerate(hits, start=1)]
    if lines := as_lines(facts, {hit.id: number for number, hit in enumerate(hits, start=1)}):
        parts.append(f"{_GRAPH}\n{lines}")
    return fenced("\n\n".join(parts))


def fenced(text: str) -> str:
    """Quoted data between two marker lines that it cannot foresee."""
    mark = secrets.token_hex(8)
    return f"<<<SOURCES {mark}>>>\n{text}\n<<<END {mark}>>>"


def fit_sources(hits: Sequence[Hit], budget: int) -> list[Hit]:
    """The best hits that fit into a number of tokens; the first one always stays."""
    kept: list[Hit] = []
    for hit in hits:
        budget -= estimate_tokens(hit.text) + estimate_tokens(hit.file_name)
        if kept and budget < 0:
            break
        kept.append(hit)
    return kept


def conversation(history: Sequence[Message], question: str, budget: int) -> list[Message]:
    """System text, earlier turns and the question, within a number of tokens.

    Roles alternate and the first turn is the user's, as strict models want it: an opening by the assistant goes into
    the system text, a question without an answer before the one that follows. What does not fit goes in pairs, oldest
    first; system text and question stay.
    """
    turns = _alternating([turn for turn in history if turn.role != "system" and turn.content.strip()])
    opening = [turns.pop(0)] if turns and turns[0].role == "assistant" else []
    if turns and turns[-1].role == "user":
        question = f"{turns.pop().content}\n\n{question}"
    said = [turn.content for turn in history if turn.role == "system"]
    system = "\n\n".join([*said, *(f"{_OPENING}{turn.content}" for turn in opening)])
    pairs = _pairs(turns)
    left = budget - estimate_tokens(question) - estimate_tokens(system)
    kept: list[Message] = []
    for pair in reversed(pairs):
        left -= sum(estimate_tokens(turn.content) for turn in pair)
        if left < 0:
            break
        kept = [*pair, *kept]
    head = [Message("system", system)] if system else []
    return [*head, *kept, Message("user", question)]


def _alternating(turns: Sequence[Message]) -> list[Message]:
    """Neighbours of one role become one turn."""
    merged: list[Message] = []
    for turn in turns:
        if merged and merged[-1].role == turn.role:
            merged[-1] = Message(turn.role, f"{merged[-1].content}\n\n{turn.content}")
        else:
            merged.append(turn)
    return merged


def _pairs(turns: Sequence[Message]) -> list[tuple[Message, Message]]:
    """Questions with their answers."""
    return [(turns[at], turns[at + 1]) for at in range(0, len(turns) - 1, 2)]


def message(role: str, content: str) -> Message:
    """A turn as a client sent it; what a model once thought is no part of the conversation."""
    roles: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}
    return Message(roles[role], strip_thinking(content)[0] if role == "assistant" else content)
