"""Makes a follow-up question searchable by itself: by a rule, for when no model rewrites it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from server.models.chat import Message
from server.retrieval.analysis import query_terms

_LEANING = re.compile(
    r"\b(?:it|its|they|them|their|he|him|his|she|her|hers|that|this|those|these|there|one|ones|same|former|latter|"
    r"previous|above|both)\b"
    r"|^\W*(?:and|but|or|so|also|then|why|how so|what about|how about|which one|what else|really)\b"
    r"|[它他她其这那此该]|上述|前者|后者|以上|刚才"
    r"|^\W*(?:还有|那么?|然后|为什么|为何|怎么|如何|多少|什么时候|哪[个里些]|呢|再|继续|具体|详细|举例)"
    r"|呢\W*$",
    re.IGNORECASE,
)
_FEW_TERMS = 2
_TURNS = 4


def standalone(question: str, history: Sequence[Message]) -> str:
    """The question with the earlier ones that it leans on before it; unchanged when it leans on none."""
    asked = [turn.content.strip() for turn in history if turn.role == "user"][-_TURNS:]
    parts = [question]
    while asked and leans(parts[0]):
        parts.insert(0, asked.pop())
    return "\n".join(parts)


def leans(question: str) -> bool:
    """Whether a question is not understood without what was said before: it refers back, or hardly says a thing."""
    return bool(_LEANING.search(question)) or len(set(query_terms(question))) <= _FEW_TERMS
