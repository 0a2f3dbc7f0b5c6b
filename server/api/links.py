"""Links to sources, as clients behind a proxy can follow them."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlencode

from server.chat.parts import Citation
from server.domain import Hit

_HARMLESS = str.maketrans({"[": "\\[", "]": "\\]", "<": "&lt;"})
"""A file's name is text in the Markdown that pages show: it cannot end a link or begin a tag."""
Link = Callable[[Hit], str | None]
"""The address of a source, None when it has none."""


def to_files(base_url: str) -> Link:
    """Links to the files of knowledge bases; the base ends with a slash."""

    def link(hit: Hit) -> str:
        query = urlencode({"knowledge_base_name": hit.kb_name, "file_name": hit.file_name})
        return f"{base_url}knowledge_base/download_doc?{query}"

    return link


def to_nothing(_: Hit) -> None:
    """For the files of a conversation, which nobody else can open."""
    return


def to_pages(hit: Hit) -> str | None:
    """Links to what a web search found."""
    url = hit.metadata.get("url")
    return str(url) if url else None


def place_url(base_url: str, hit: Hit, start: int | None = None, end: int | None = None) -> str | None:
    """The address of the text that a hit or a citation points to, opened and marked."""
    if not hit.kb_name:
        return to_pages(hit)
    place = {"start": hit.start if start is None else start, "end": hit.end if end is None else end}
    known = {key: value for key, value in place.items() if value is not None}
    query = urlencode({"knowledge_base_name": hit.kb_name, "file_name": hit.file_name, **known})
    return f"{base_url}knowledge_base/view_doc?{query}"


def source_line(number: int, hit: Hit, link: Link) -> str:
    """A source as the old contract writes it: number, link if there is one, text."""
    address = link(hit)
    name = hit.file_name.translate(_HARMLESS)
    title = f"[{name}]({address})" if address else f"[{name}]"
    return f"出处 [{number}] {title} \n\n{hit.text}\n\n"


def citation_json(citation: Citation, base_url: str, link: Link) -> dict[str, object]:
    """A citation as clients get it: never an internal number without the file, page and span it stands for."""
    hit = citation.source
    linked = link(hit) is not None
    return {
        "number": citation.number,
        "claim": citation.claim,
        "quote": citation.quote,
        "verified": citation.verified,
        "support": citation.support,
        "knowledge_base_name": hit.kb_name if linked else "",
        "file_name": hit.file_name,
        "page": hit.page,
        "headings": list(hit.headings),
        "start": citation.start,
        "end": citation.end,
        "chunk_id": hit.id,
        "url": place_url(base_url, hit, citation.start, citation.end) if linked else None,
    }
