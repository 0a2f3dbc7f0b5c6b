"""What an answer is made of, whatever shape a route sends it in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from server.domain import Hit
from server.models.chat import Message, Usage


@dataclass(frozen=True, slots=True)
class Conversation:
    """A stored conversation; `turns` is how many earlier ones the model is shown."""

    id: str
    turns: int


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and how it is to be answered.

    `kind` names the family of prompts. Explicit `history` counts before that of the `conversation`. Unless `cited`
    nobody looks at the citations, and they are not checked. With `may_be_cut` an answer that the model had to cut is no
    error; `options` go to the model's provider as they are.
    """

    query: str
    kind: str = "knowledge_base_chat"
    model_name: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    prompt_name: str = "default"
    history: Sequence[Message] = ()
    conversation: Conversation | None = None
    cited: bool = True
    may_be_cut: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def kept(self, conversation: Conversation) -> Asked:
        """The same question, stored as a turn of a conversation."""
        return replace(self, conversation=conversation)

    def with_query(self, query: str) -> Asked:
        """Another question, asked in the same way."""
        return replace(self, query=query)

    def of_kind(self, kind: str) -> Asked:
        """The same question with another family of prompts."""
        return replace(self, kind=kind)


@dataclass(frozen=True, slots=True)
class Begun:
    """The first part: what the answer will rest on. `question` is what was searched for."""

    message_id: str
    question: str
    sources: Sequence[Hit] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """How far a search is that takes several steps; comes before `Begun`. `asked` are questions that it follows."""

    name: str
    done: int
    total: int
    asked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Said:
    """Some more of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Some more of what a reasoning model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool that an agent called, when it is done."""

    name: str
    arguments: dict[str, Any]
    output: str
    failed: bool = False
    sources: Sequence[Hit] = ()


@dataclass(frozen=True, slots=True)
class Citation:
    """A claim of the answer and the source that it names.

    `number` counts the sources from 1. `start` and `end` are character offsets into the canonical text of the
    file's version, None where there is none; `quote` is what stands there. `verified` tells whether that span
    supports the claim, `support` (0 to 1) how well.
    """

    number: int
    claim: str
    source: Hit
    start: int | None
    end: int | None
    quote: str
    verified: bool
    support: float


@dataclass(frozen=True, slots=True)
class Done:
    """The last part: the whole answer. `model` is None when no language model wrote it."""

    text: str
    thinking: str = ""
    citations: Sequence[Citation] = ()
    usage: Usage = field(default_factory=lambda: Usage(0, 0))
    model: str | None = None
    cut: bool = False


Part = Step | Begun | Said | Thought | ToolUse | Done
