"""Chunks are exact slices, small enough, cut at the best place, and nothing is lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.domain import Block, Chunk, LoadedDocument
from server.errors import InvalidRequest
from server.ingest.splitters.base import BLOCK_SEPARATOR, Section, canonical_text, sections
from server.ingest.splitters.factory import DEFAULT_SPLITTER, SPLITTERS, splitter
from server.ingest.splitters.recursive import RecursiveTextSplitter
from server.ingest.splitters.zh_title import TitleEnhancer, is_title
from server.models.rulers import Tokens, guess
from tests.conftest import grows_linearly

ALPHABET = "ab文字 \n。！”’）,.!?;，；0\u0301\u200d\U0001f469\U0001f3fd\U00020bb7"


def document(*blocks: Block | str) -> LoadedDocument:
    return LoadedDocument(tuple(Block(b) if isinstance(b, str) else b for b in blocks), "test")


def split(source: LoadedDocument | str, size: int, overlap: int = 0) -> list[Chunk]:
    source = document(source) if isinstance(source, str) else source
    return RecursiveTextSplitter(size, overlap).split(source)


def texts(source: LoadedDocument | str, size: int, overlap: int = 0) -> list[str]:
    return [chunk.text for chunk in split(source, size, overlap)]


@st.composite
def documents(draw: st.DrawFn) -> LoadedDocument:
    blocks = st.builds(
        Block,
        text=st.text(ALPHABET, min_size=1, max_size=120),
        page=st.sampled_from([None, 1, 2]),
        headings=st.sampled_from([(), ("A",), ("A", "B")]),
        whole=st.booleans(),
        metadata=st.sampled_from([{}, {"kind": "heading"}]),
    )
    return document(*draw(st.lists(blocks, min_size=1, max_size=6)))


@given(documents(), st.integers(1, 60), st.integers(0, 59))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_chunks_are_exact_slices_of_bounded_size(source: LoadedDocument, size: int, overlap: int) -> None:
    overlap = min(overlap, size - 1)
    canonical, chunks = canonical_text(source), split(source, size, overlap)
    for chunk in chunks:
        assert chunk.start is not None
        assert canonical[chunk.start : chunk.end] == chunk.text == chunk.text.strip()
        assert 1 <= len(chunk.text) <= size
    places = [(chunk.start or 0, chunk.end or 0) for chunk in chunks]
    for before, after in zip(places, places[1:], strict=False):
        assert before[0] < after[0]
        assert before[1] < after[1]
        assert before[1] - after[0] <= overlap
    assert split(source, size, overlap) == chunks


@given(documents(), st.integers(1, 60))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_nothing_but_white_space_is_lost_or_doubled(source: LoadedDocument, size: int) -> None:
    joined = "".join(texts(source, size))
    assert "".join(joined.split()) == "".join(canonical_text(source).split())


@pytest.mark.parametrize(
    ("size", "overlap", "field"),
    [
        (0, 0, "chunk_size"),
        (-1, 0, "chunk_size"),
        (50, -5, "chunk_overlap"),
        (100, 100, "chunk_overlap"),
        (100, 150, "chunk_overlap"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(size: int, overlap: int, field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        RecursiveTextSplitter(size, overlap)


def test_sentences_stay_whole_and_closing_marks_stay_behind() -> None:
    chinese = "今日巡检了第三号泵房。他说：“未见渗漏！”随后记录读数；由值班长决定（更换垫片）。" * 4
    chunks = texts(chinese, 40)
    assert len(chunks) > 4
    assert all(chunk[0] not in "。！？；，、”’）" and chunk[-1] in "。”；）" for chunk in chunks)
    english = "Mr. Smith owns 3.5 boats. Do they float? They do! " * 5
    assert all(chunk[-1] in ".?!" and not chunk.endswith("Mr.") for chunk in texts(english, 60))


def test_a_closing_mark_is_never_first_even_where_nothing_else_is_a_boundary() -> None:
    chunks = texts("字字字字字字字”" * 20, 7)
    assert all(chunk[0] != "”" and len(chunk) <= 7 for chunk in chunks)


def test_the_strongest_boundary_wins() -> None:
    assert texts("one two. three\n\nfour five. six seven. eight", 30) == [
        "one two. three",
        "four five. six seven. eight",
    ]
    assert texts("甲乙丙丁，戊己庚辛，壬癸", 10) == ["甲乙丙丁，戊己庚辛，", "壬癸"]
    assert texts("alpha beta gamma delta", 13) == ["alpha beta", "gamma delta"]
    assert texts("使用TensorFlow框架训练", 14) == ["使用TensorFlow框架", "训练"]


def test_a_line_that_only_wraps_is_no_boundary() -> None:
    assert texts("This one ends. This sentence goes on and\non. After", 44) == [
        "This one ends. This sentence goes on and\non.",
        "After",
    ]


def test_a_text_without_boundaries_is_cut_to_size() -> None:
    assert texts("qwertyuiop12345" * 3, 15) == ["qwertyuiop12345"] * 3


def test_characters_as_people_see_them_stay_whole() -> None:
    for cluster in ("e\u0301\u0323", "\U0001f469\U0001f3fd\u200d\U0001f680", "क\u0947"):
        assert all(len(chunk) % len(cluster) == 0 for chunk in texts(cluster * 50, 23))


def test_overlap_begins_at_a_sentence_else_at_a_word() -> None:
    first, second = split("One is here now. Two is there. Three is nowhere at all.", 40, 20)
    assert (first.text, second.text) == ("One is here now. Two is there.", "Two is there. Three is nowhere at all.")
    words = texts("alpha beta gamma delta epsilon zeta eta theta", 20, 8)
    assert words == ["alpha beta gamma", "gamma delta epsilon", "epsilon zeta eta", "zeta eta theta"]


def test_small_blocks_share_a_chunk_within_a_page_and_a_heading() -> None:
    blocks = (Block("a", 1, ("H",)), Block("b", 1, ("H",)), Block("c", 2, ("H",)), Block("d", 2, ("I",)))
    chunks = split(document(*blocks), 100)
    assert [(chunk.text, chunk.page, chunk.headings) for chunk in chunks] == [
        ("a\n\nb", 1, ("H",)),
        ("c", 2, ("H",)),
        ("d", 2, ("I",)),
    ]


def test_a_title_goes_with_what_is_below_it() -> None:
    def title(text: str, *path: str) -> Block:
        return Block(text, headings=path, metadata={"kind": "heading"})

    chunks = split(document(title("A", "A"), title("B", "A", "B"), Block("text", headings=("A", "B"))), 100)
    assert chunks == [Chunk("A\n\nB\n\ntext", 0, 10, None, ("A", "B"))]


def test_a_whole_block_is_not_cut_while_it_fits() -> None:
    code = "line one.\n\nline two.\n\nline three."
    source = document("Words before. More of them.", Block(code, whole=True), "After.")
    for size in range(len(code), 70):
        assert any(code in chunk for chunk in texts(source, size, 5))


def test_a_whole_block_that_does_not_fit_is_cut_between_rows_without_overlap() -> None:
    rows = [f"| row {n} | a. b, c |" for n in range(20)]
    chunks = texts(document("Intro.", Block("\n".join(rows), whole=True)), 60, 20)
    assert "\n".join(chunks).replace("Intro.\n\n", "").split("\n") == rows


def test_a_row_longer_than_a_chunk_is_cut_like_text_and_begins_with_the_short_rows() -> None:
    block = Block("title: 一\ntext: " + "一二三四五六七八九十。" * 12, whole=True)
    first, *rest = texts(document(block), 60)
    assert first.startswith("title: 一\ntext: 一二")
    assert all(chunk.endswith("。") for chunk in (first, *rest))


def test_rows_of_a_table_are_grouped_and_never_doubled() -> None:
    rows = [f"n: {n}; square: {n * n}" for n in range(50)]
    chunks = texts(document(*(Block(row, whole=True) for row in rows)), 100, 30)
    assert "\n\n".join(chunks).split("\n\n") == rows
    assert len(chunks) < 20


@pytest.mark.parametrize("text", ["x" * 100_000, "中" * 40_000, "。" * 30_000, "\u0301" * 30_000, "a " * 30_000])
def test_time_grows_with_the_length_only(text: str) -> None:
    split(text, 250, 50)
    assert grows_linearly(lambda times: split(text * times, 250, 50))


def test_splitters_are_found_by_name() -> None:
    assert all(splitter(name, 10, 0).split(document("text"))[0].text == "text" for name in SPLITTERS)
    with pytest.raises(InvalidRequest, match="Nope"):
        splitter("Nope")


@pytest.mark.parametrize("text", ["1.2 适用范围", "第3章 总则", "2 Scope of work"])
def test_short_numbered_lines_are_titles(text: str) -> None:
    assert is_title(text)


@pytest.mark.parametrize(
    "text", ["", "适用范围", "2023", "1.2 适用范围。", "3.1.4.1.5 a", "第3章 " + "长" * 20, "总则的内容在第3章"]
)
def test_other_lines_are_not(text: str) -> None:
    assert not is_title(text)


def test_chunks_below_a_title_tell_it() -> None:
    chunks = [
        Chunk("前言", 0, 2),
        Chunk("1.1 适用范围", 4, 10),
        Chunk("正文。", 12, 15),
        Chunk("1.2 术语定义", 17, 23),
        Chunk("别的。", 25, 28),
    ]
    enhanced = TitleEnhancer().enhance(chunks)
    assert [chunk.text for chunk in enhanced] == [
        "前言",
        "1.1 适用范围",
        "下文与(1.1 适用范围)有关。正文。",
        "1.2 术语定义",
        "下文与(1.2 术语定义)有关。别的。",
    ]
    assert [chunk.metadata.get("category") for chunk in enhanced] == [None, "cn_Title", None, "cn_Title", None]
    assert (enhanced[2].start, enhanced[2].end) == (12, 15)


WORDS = Tokens(lambda text: [match.end() for match in re.finditer(r"\s*\S", text)], limit=90)
"""Counts characters that are no white space."""


@given(documents(), st.integers(2, 60), st.integers(0, 59), st.sampled_from(SPLITTERS))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_every_splitter_keeps_sizes_in_tokens_and_loses_nothing(
    source: LoadedDocument, size: int, overlap: int, name: str
) -> None:
    limit = 90 if name == "MarkdownHeaderTextSplitter" else size
    canonical, chunks = canonical_text(source), splitter(name, size, min(overlap, size - 1), WORDS).split(source)
    covered: set[int] = set()
    for chunk in chunks:
        assert canonical[chunk.start : chunk.end] == chunk.text
        assert 1 <= WORDS.measure(chunk.text) <= limit
        covered.update(range(chunk.start or 0, chunk.end or 0))
    assert all(at in covered or char.isspace() for at, char in enumerate(canonical))


def test_a_chunk_never_has_more_tokens_than_its_model_reads() -> None:
    chunks = splitter(DEFAULT_SPLITTER, 5000, 4000, WORDS).split(document("字" * 1000))
    assert max(WORDS.measure(chunk.text) for chunk in chunks) == 90


def test_a_sentence_a_chunk_and_a_section_a_chunk() -> None:
    source = document(
        Block("今天晴。明天雨！It rains. 3.5 mm fell", headings=("A",)), Block("x " * 60, headings=("B",))
    )
    sentences = [chunk.text for chunk in splitter("SentenceTextSplitter", 200, 20).split(source)]
    assert sentences[:4] == ["今天晴。", "明天雨！", "It rains.", "3.5 mm fell"]
    sections_ = [chunk.text for chunk in splitter("MarkdownHeaderTextSplitter", 20, 0).split(source)]
    assert sections_ == ["今天晴。明天雨！It rains. 3.5 mm fell", ("x " * 60).strip()]


def test_a_long_document_is_split_a_section_at_a_time() -> None:
    blocks = [Block("港务长记录潮位。" * 1000)] * 200
    parts = [part for part in sections(iter(blocks)) if isinstance(part, Section)]
    assert len(parts) == 4
    assert BLOCK_SEPARATOR.join(part.text for part in parts) == canonical_text(document(*blocks))
    cut = [chunk for part in parts for chunk in RecursiveTextSplitter(4000, 0).split_section(part)]
    canonical = canonical_text(document(*blocks))
    assert all(canonical[chunk.start : chunk.end] == chunk.text for chunk in cut)


def test_guessed_tokens_are_rather_too_many() -> None:
    assert guess().measure("今天天气很好") == 6
    assert guess().measure("the weather is fine today") == 9
    assert guess().reach("the weather is fine today", 4, 3) == 13
    assert guess().back("the weather is fine today", 25, 2) == 21
