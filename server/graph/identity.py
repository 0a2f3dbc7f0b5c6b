"""When two names mean the same entity, and whether a text says them at all."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace

from server.domain import Claim, Extraction, Mention, Relation

LONGEST_NAME = 120
_LONGEST_KEY = 140
"""NFKC makes some characters longer; a column of the database holds a key and the kind of its entity."""
_NOT_KEY = re.compile(r"[\W_]+")
_POSSESSIVE = re.compile(r"['’]s?\b")
_ARTICLE = re.compile(r"^(?:the|a|an)\s+", re.IGNORECASE)
# What companies put behind their names, or leave away.
_FORM = re.compile(
    r"[\s,]+(?:inc|incorporated|corp|corporation|co|ltd|limited|llc|plc|gmbh|ag|s\.?a)\.?$"
    r"|(?:股份)?有限(?:责任)?公司$|集团公司$",
    re.IGNORECASE,
)
# A prompt's placeholders, echoed by a model: <entity_name>, {source}, [target].
_TEMPLATE = re.compile(r"^[<{\[(]+\s*[\w ]+\s*[>}\])]+$")


@functools.lru_cache(1 << 16)
def entity_key(name: str) -> str:
    """What names of one entity have in common: case, width, spaces, hyphens, quotes, articles and the legal forms of
    companies do not count. Empty when nothing is left that could be a name."""
    plain = unicodedata.normalize("NFKC", name).strip()
    plain = _ARTICLE.sub("", plain)
    shorter = _FORM.sub("", plain)
    return (_letters(shorter) or _letters(plain))[:_LONGEST_KEY]


def _letters(text: str) -> str:
    return _NOT_KEY.sub("", _POSSESSIVE.sub("", text).casefold())


def letters_of(text: str) -> str:
    """A text as `is_said` wants it."""
    return _letters(unicodedata.normalize("NFKC", text))


def is_said(name: str, letters: str) -> bool:
    """Whether a name occurs in a text that was reduced with `letters_of`."""
    key = entity_key(name)
    return bool(key) and key in letters


def grounded(found: Extraction, text: str) -> tuple[Extraction, int]:
    """What of an extraction the text bears out, and how many mentions and relations were dropped.

    A mention or an alias stays only if the text says its name, a relation only if both its ends stay, a claim only if
    its subject does and its quote stands in the text; placeholders of prompts, names without a letter or of absurd
    length, and relations of an entity with itself go.
    """
    letters = letters_of(text)
    kept: dict[tuple[str, str], Mention] = {}
    for mention in found.mentions:
        if _is_name(mention.name) and is_said(mention.name, letters):
            said = tuple(alias for alias in mention.aliases if _is_name(alias) and is_said(alias, letters))
            kept.setdefault((entity_key(mention.name), mention.name), replace(mention, aliases=said))
    named = dict(reversed(kept))
    relations = [_between(relation, named) for relation in found.relations if _connects(relation, named)]
    claims = [_of_named(claim, named) for claim in found.claims if _is_borne_out(claim, named, letters)]
    dropped = len(found.mentions) - len(kept) + len(found.relations) - len(relations) + len(found.claims) - len(claims)
    return Extraction(tuple(kept.values()), tuple(relations), tuple(claims)), dropped


def _is_borne_out(claim: Claim, named: Mapping[str, str], letters: str) -> bool:
    quote = letters_of(claim.quote)
    return entity_key(claim.subject) in named and bool(quote) and quote in letters


def _of_named(claim: Claim, named: Mapping[str, str]) -> Claim:
    """The claim with its entities named as a mention of the chunk is; an object that is none is left out."""
    return replace(
        claim, subject=named[entity_key(claim.subject)], object=named.get(entity_key(claim.object), "")
    )  # fmt: skip


def _is_name(name: str) -> bool:
    return 0 < len(name.strip()) <= LONGEST_NAME and not _TEMPLATE.match(name.strip())


def _connects(relation: Relation, named: Mapping[str, str]) -> bool:
    source, target = entity_key(relation.source), entity_key(relation.target)
    return source != target and source in named and target in named


def _between(relation: Relation, named: Mapping[str, str]) -> Relation:
    """The relation with its ends named as a mention of the chunk is."""
    return replace(relation, source=named[entity_key(relation.source)], target=named[entity_key(relation.target)])


def candidate_names(text: str, longest: int = 6) -> Sequence[str]:
    """Stretches of a question that may be names: runs of up to `longest` words, and of 2 to 10 Chinese characters;
    longer ones first."""
    found: list[str] = []
    for run in re.findall(r"[^\W_\u2e80-\uffff]+(?:[\s\-'’.&]+[^\W_\u2e80-\uffff]+)*", text):
        words = re.findall(r"[^\W_]+(?:['’][^\W_]+)?", run)
        for size in range(min(longest, len(words)), 0, -1):
            found.extend(" ".join(words[at : at + size]) for at in range(len(words) - size + 1))
    for run in re.findall(r"[\u3400-\u9fff\uf900-\ufaff·]{2,}", text):
        for size in range(min(10, len(run)), 1, -1):
            found.extend(run[at : at + size] for at in range(len(run) - size + 1))
    return list(dict.fromkeys(found))
