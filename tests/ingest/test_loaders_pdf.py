"""PDF: pages of running text, and clear words about what cannot be read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from server.domain import LoadedDocument
from server.errors import DamagedFile, EmptyDocument, LockedFile
from server.ingest.loaders import pdf
from server.ingest.loaders.base import pages_told
from server.ingest.loaders.factory import load_document, loader_for
from server.ingest.loaders.pdf_text import page_lines, paragraphs, without_running_lines
from tests.ingest.pdf_maker import PICTURE, make_pdf


def load(data: bytes) -> LoadedDocument:
    return loader_for("a.pdf").load(data, "a.pdf")


@pytest.fixture
def without_ocr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "ocr_installed", lambda: False)


@pytest.mark.usefixtures("without_ocr")
def test_each_page_is_a_block_with_its_number() -> None:
    document = load(make_pdf([["Boilers are hot."], PICTURE, ["Valves (brass) are not."], []]))
    assert [(block.page, block.text) for block in document.blocks] == [
        (1, "Boilers are hot."),
        (3, "Valves (brass) are not."),
    ]
    assert document.warnings == ("第 2 页没有文本层（需要 OCR） / pages 2 have no text layer (need OCR)",)


@pytest.mark.usefixtures("without_ocr")
def test_pages_without_a_text_layer_are_named_as_ranges() -> None:
    (warning,) = load(make_pdf([PICTURE, ["x"], PICTURE, PICTURE, PICTURE, ["y"], PICTURE])).warnings
    assert "pages 1, 3-5, 7 have" in warning


@pytest.mark.usefixtures("without_ocr")
def test_a_pdf_without_a_text_layer_says_how_to_get_ocr() -> None:
    with pytest.raises(EmptyDocument, match=r"扫描件.*OCR.*zhiku\[ocr\].*no text layer, scanned\?"):
        load(make_pdf([PICTURE, PICTURE]))


def test_blank_pages_hide_no_text() -> None:
    assert load(make_pdf([[], ["x"], []])).warnings == ()
    with pytest.raises(EmptyDocument, match="没有文本 /"):
        load(make_pdf([[], []]))


def test_pages_without_a_text_layer_are_read_as_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, ...]] = []

    def seen(picture: Any) -> str:
        sizes.append(picture.shape)
        return f"picture {len(sizes)}"

    monkeypatch.setattr(pdf, "ocr_installed", lambda: True)
    monkeypatch.setattr(pdf, "read_picture", seen)
    document = load(make_pdf([PICTURE, ["A page with a text layer of its own."], PICTURE]))
    assert [(block.page, block.text) for block in document.blocks if block.page != 2] == [
        (1, "picture 1"),
        (3, "picture 2"),
    ]
    assert document.warnings == ()
    assert all(max(size) < 3600 and size[2] == 3 for size in sizes)
    monkeypatch.setattr(pdf, "_OCR_SECONDS", -1.0)
    assert "pages 3 have" in load(make_pdf([["x"], [], PICTURE])).warnings[0]


@pytest.mark.parametrize("rotate", [90, 180, 270])
def test_a_rotated_page_reads_as_the_others(rotate: int) -> None:
    assert load(make_pdf([["North boathouse 27C", "keeps the winch."]], rotate=rotate)).blocks[0].text == (
        "North boathouse 27C\nkeeps the winch."
    )


def test_an_empty_user_password_is_none() -> None:
    assert load(make_pdf([["Permit 3307"]], password="")).blocks[0].text == "Permit 3307"


def test_a_real_password_is_asked_for() -> None:
    data = make_pdf([["Permit 3307"]], password="secret")
    with pytest.raises(LockedFile, match=r"密码.*passwords.*encrypted.*passwords"):
        load(data)
    with pytest.raises(LockedFile, match=r"密码不正确.*wrong password") as wrong:
        load_document(data, "a.pdf", password="hunter2")
    assert "hunter2" not in wrong.value.message
    assert load_document(data, "a.pdf", password="secret").blocks[0].text == "Permit 3307"


def test_a_password_that_is_not_needed_does_no_harm() -> None:
    for data in (make_pdf([["Permit 3307"]]), make_pdf([["Permit 3307"]], password="")):
        assert load_document(data, "a.pdf", password="secret").warnings == ()


@pytest.mark.parametrize("data", [b"", b"just text", make_pdf([["x"]])[:60]])
def test_what_is_no_pdf_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedFile, match="cannot read the file"):
        load(data)


def test_many_threads_may_load_at_once() -> None:
    data = [make_pdf([[f"File {number} line {line}." for line in range(30)]] * 3) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        documents = list(pool.map(load, data * 3))
    assert [document.blocks[0].text.split(" line")[0] for document in documents] == [
        f"File {number}" for number in range(8)
    ] * 3


def test_running_headers_go_and_look_alikes_stay() -> None:
    pages = [
        ["ACME INTERNAL", f"Invoice {4471 * n % 997}", f"Body text {n * n}.", f"Page {n} of 6"] for n in range(1, 7)
    ]
    assert without_running_lines(pages)[2] == ["Invoice 452", "Body text 9."]
    same = [["Form 7", "same"]] * 6
    assert without_running_lines(same)[0] == ["same"]
    assert without_running_lines(pages[:2]) == pages[:2]


def test_glyphs_become_letters_and_broken_words_whole() -> None:
    assert page_lines("ﬁeld ﬂag\r\n\r\n⼀⽉ Ｃｕ\r\ninter\ufffe\r\nnational") == [
        "field flag",
        "一月 Ｃｕ",
        "international",
    ]


def test_lines_that_only_wrap_are_joined() -> None:
    english = [
        "The boilers in the north house were repaired in the spring and inter-",
        "nationally approved by all of the",
    ]
    assert paragraphs([*english, "inspectors who came.", "Next part", "• one"]) == (
        "The boilers in the north house were repaired in the spring and internationally approved by all of the "
        "inspectors who came.\nNext part\n• one"
    )
    assert paragraphs(["第三号泵房在今日上午的巡检当中", "没有发现渗漏现象，压力表读数一", "切正常。"]) == (
        "第三号泵房在今日上午的巡检当中没有发现渗漏现象，压力表读数一切正常。"
    )
    narrow = [
        "A wide line that sets the measure for all the lines of this whole page here.",
        "It was shown in this work",
        "that it can.",
    ]
    assert paragraphs(narrow).endswith("It was shown in this work that it can.")
    assert paragraphs([]) == ""


def test_each_page_is_told_while_none_can_be_handed_on() -> None:
    told: list[tuple[int, int]] = []
    with pages_told(lambda page, pages: told.append((page, pages))):
        load_document(make_pdf([["The lamp"], ["of"], ["Kap Arkona"]]), "a.pdf")
    assert told == [(1, 3), (2, 3), (3, 3)]
    load_document(make_pdf([["The lamp"]]), "a.pdf")
    assert len(told) == 3
