"""Sheets, slides, OpenDocument, rich text and books: places, tables and values as their readers see them."""

from __future__ import annotations

import io
import re
import zipfile
from datetime import date, datetime, time, timedelta
from typing import Any

import docx
import openpyxl
import pptx
import pytest
from openpyxl.comments import Comment

from server.domain import Block, LoadedDocument
from server.errors import DamagedFile, EmptyDocument, UnsupportedFormat
from server.ingest.loaders import legacy, xlsx
from server.ingest.loaders.cells import Value, shown
from server.ingest.loaders.factory import load_document, loader_for
from tests.ingest.makers import XLS, make_epub, make_odf, make_ole, make_zip


def places(document: LoadedDocument) -> list[tuple[int | None, tuple[str, ...], str]]:
    return [(block.page, block.headings, block.text) for block in document.blocks]


def saved(document: Any) -> bytes:
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()


def make_xlsx(**sheets: Any) -> Any:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    return book


def texts(book: Any) -> list[str]:
    return [block.text for block in load_document(saved(book), "a.xlsx").blocks]


@pytest.mark.parametrize(
    ("value", "number_format", "text"),
    [
        (0.125, "0.0%", "12.5%"),
        (0.125, "0%", "13%"),
        (1599.994, "#,##0.00", "1599.99"),
        (-1599.99, "$#,##0.00;[Red]($#,##0.00)", "($1599.99)"),
        (-3, "0", "-3"),
        (2.5, "# ?/?", "2 1/2"),
        (0.25, "# ??/??", "1/4"),
        (7, "000", "007"),
        (1.5, "0.0#", "1.5"),
        (197_999_999, "0.00E+00", "1.98E+08"),
        (12, '0" 台"', "12 台"),
        (5, "[$€-407] 0.0", "€ 5.0"),
        (1234567890123, "General", "1234567890123"),
        (0.1 + 0.2, "General", "0.3"),
        (float("nan"), "General", "nan"),
        (True, "General", "TRUE"),
        (datetime(2026, 3, 9), "yyyy-mm-dd", "2026-03-09"),
        (datetime(2026, 3, 9, 18, 30), "m/d/yy h:mm", "2026-03-09 18:30:00"),
        (datetime(2026, 3, 9, 18, 30), "m/d/yy", "2026-03-09"),
        (datetime(2026, 3, 9, 18, 30), "h:mm", "18:30:00"),
        (date(2026, 3, 9), "General", "2026-03-09"),
        (time(7, 5), "General", "07:05:00"),
        (timedelta(hours=30, minutes=5), "[h]:mm:ss", "30:05:00"),
        (None, "General", ""),
        ("two\nlines", "@", "two lines"),
    ],
)
def test_cells_read_as_they_are_shown(value: Value, number_format: str, text: str) -> None:
    assert shown(value, number_format) == text


def test_a_sheet_is_a_page_with_named_rows_under_its_name() -> None:
    book = make_xlsx(人物=[["名", "武器"], ["关羽", "刀"]], 空=[], Hidden=[["secret"]], Last=[["only"]])
    book["Hidden"].sheet_state = "hidden"
    assert places(load_document(saved(book), "a.xlsx")) == [
        (1, ("人物",), "人物"),
        (1, ("人物",), "名: 关羽; 武器: 刀"),
        (4, ("Last",), "Last"),
        (4, ("Last",), "only"),
    ]


def test_titles_merged_labels_and_gaps_do_not_hide_the_header() -> None:
    book = make_xlsx(s=[["Rota 2026"], [], ["Depot", "Shift", "Crew"], ["Larkspur", "day", 7], [None, "night", 4]])
    book["s"].merge_cells("A1:C1")
    book["s"].merge_cells("A4:A5")
    book["s"]["CV900"] = "far"
    assert texts(book)[1:] == [
        "Rota 2026",
        "Depot: Larkspur; Shift: day; Crew: 7",
        "Depot: Larkspur; Shift: night; Crew: 4",
        "Depot: ; Shift: ; Crew: ; far",
    ]


def test_a_header_of_two_rows_is_one_name_for_each_column() -> None:
    rows = [["Site", "2025", None, "2026", None], [None, "Plan", "Real", "Plan", "Real"], ["North", 1, 2, 3, 4]]
    assert texts(make_xlsx(s=rows))[1:] == [
        "Site: North; 2025 / Plan: 1; 2025 / Real: 2; 2026 / Plan: 3; 2026 / Real: 4"
    ]


class Solved:
    """A workbook whose formulas have the result 155, as spreadsheet programs store it."""

    def __init__(self, book: Any) -> None:
        self._book = book

    def save(self, stream: Any) -> None:
        with zipfile.ZipFile(io.BytesIO(saved(self._book))) as old:
            members = {name: old.read(name) for name in old.namelist()}
        sheet = "xl/worksheets/sheet1.xml"
        members[sheet] = re.sub(rb"</f><v ?/>|</f><v></v>", b"</f><v>155</v>", members[sheet])
        stream.write(make_zip(members))


def test_formulas_give_their_value_or_say_that_there_is_none() -> None:
    book = make_xlsx(s=[["n", "sum"], [1, "=A2+1"]])
    document = load_document(saved(book), "a.xlsx")
    assert document.blocks[1].text == "n: 1; sum: =A2+1"
    assert document.warnings[0].startswith("有 1 个公式")
    assert texts(Solved(book))[1] == "n: 1; sum: 155"


def test_comments_stand_behind_their_cell() -> None:
    book = make_xlsx(s=[["a", "b"], ["x", "y"]])
    book["s"]["B2"].comment = Comment("[Threaded comment]\n\nold program\n\nComment:\n    checked", "me")
    assert texts(book)[1] == "a: x; b: y (checked)"


def test_large_workbooks_are_read_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xlsx, "_LARGE", 0)
    rows = [["n", "share"], *([n, f"p{n}"] for n in range(300))]
    found = texts(make_xlsx(s=rows, t=[["x"]]))
    assert len(found) == 303
    assert found[1] == "n: 0; share: p0"


def test_old_workbooks_read_like_new_ones() -> None:
    assert places(load_document(XLS, "a.xls")) == [
        (1, ("账目",), "账目"),
        (1, ("账目",), "2026 报表"),
        (1, ("账目",), "仓库: Larkspur; 日期: 2026-03-09; 占比: 12.5%; 金额: 1599.99"),
        (1, ("账目",), "仓库: Larkspur; 日期: 2026-03-10; 占比: 50.0%; 金额: TRUE"),
    ]


def make_pptx() -> Any:
    show = pptx.Presentation()
    first = show.slides.add_slide(show.slide_layouts[5])
    first.shapes.title.text = "关羽"
    low = first.shapes.add_textbox(0, 4_000_000, 900_000, 900_000)
    low.text_frame.text = "below"
    high = first.shapes.add_textbox(0, 2_000_000, 900_000, 900_000)
    high.text_frame.text = "above"
    first.notes_slide.notes_text_frame.text = "讲者备注"
    second = show.slides.add_slide(show.slide_layouts[6])
    table = second.shapes.add_table(2, 2, 0, 0, 900_000, 900_000).table
    for cell, text in zip(table.iter_cells(), ["Zone", "Price", "Kestrel", "417"], strict=True):
        cell.text = text
    inner = second.shapes.add_group_shape().shapes.add_group_shape().shapes.add_textbox(0, 0, 9, 9)
    inner.text_frame.text = "in a group"
    return show


def test_slides_have_titles_shapes_from_the_top_tables_and_notes() -> None:
    assert places(load_document(saved(make_pptx()), "a.pptx")) == [
        (1, ("关羽",), "关羽"),
        (1, ("关羽",), "above"),
        (1, ("关羽",), "below"),
        (1, ("关羽",), "讲者备注"),
        (2, (), "| Zone | Price |\n| --- | --- |\n| Kestrel | 417 |"),
        (2, (), "in a group"),
    ]


def test_opendocument_text_keeps_headings_lists_tables_and_notes() -> None:
    body = """<text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>
    <text:h text:outline-level="1">Title</text:h><text:p>One<text:s text:c="2"/>two<text:note><text:note-body>
    <text:p>foot</text:p></text:note-body></text:note> <text:span>three</text:span>.</text:p>
    <text:list><text:list-item><text:p>item</text:p></text:list-item></text:list>
    <table:table><table:table-row><table:table-cell><text:p>a</text:p></table:table-cell>
    <table:table-cell><text:p>b</text:p></table:table-cell></table:table-row>
    <table:table-row><table:table-cell table:number-columns-repeated="2"><text:p>1</text:p></table:table-cell>
    <table:table-cell table:number-columns-repeated="16000"/></table:table-row></table:table>"""
    assert places(load_document(make_odf("text", body), "a.odt")) == [
        (None, ("Title",), "Title"),
        (None, ("Title",), "One  two three."),
        (None, ("Title",), "- item"),
        (None, ("Title",), "| a | b |\n| --- | --- |\n| 1 | 1 |"),
        (None, (), "foot"),
    ]


def test_opendocument_sheets_and_slides_are_pages() -> None:
    cell = "<table:table-cell><text:p>{}</text:p></table:table-cell>"
    rows = "".join(
        f"<table:table-row>{''.join(map(cell.format, row))}</table:table-row>"
        for row in [("Year", "n"), ("2019", "12%")]
    )
    empty = '<table:table-row table:number-rows-repeated="1000000"><table:table-cell/></table:table-row>'
    sheets = f'<table:table table:name="空"/><table:table table:name="鸭">{rows}{empty}</table:table>'
    assert places(load_document(make_odf("spreadsheet", sheets), "a.ods")) == [
        (2, ("鸭",), "鸭"),
        (2, ("鸭",), "Year: 2019; n: 12%"),
    ]
    frame = '<draw:frame presentation:class="{}"><draw:text-box><text:p>{}</text:p></draw:text-box></draw:frame>'
    slide = f"<draw:page>{frame.format('title', 'Ducks')}{frame.format('outline', 'swim')}</draw:page>"
    assert places(load_document(make_odf("presentation", slide), "a.odp")) == [
        (1, ("Ducks",), "Ducks"),
        (1, ("Ducks",), "swim"),
    ]


def test_books_follow_their_spine() -> None:
    book = make_epub({"1%20a.xhtml": "<h1>One</h1><p>first</p>", "b.xhtml": "<p>second</p>"})
    document = load_document(book.replace(b"1%20a.xhtml", b"1%20a.xhtml"), "a.epub")
    assert [text for _, _, text in places(document)] == ["second"]
    assert "1 a.xhtml" in document.warnings[0]
    assert places(load_document(make_epub({"a.xhtml": "<h1>One</h1><p>first</p>", "b.xhtml": "second"}), "a.epub")) == [
        (1, ("One",), "One"),
        (1, ("One",), "first"),
        (2, (), "second"),
    ]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (rb"{\rtf1\ansi\ansicpg936 \'c4\'e3\'ba\'c3\par}", "你好"),
        (rb"{\rtf1\ansi\uc1 \u8364?\u20320?\par}", "€你"),
        (
            rb"{\rtf1{\fonttbl{\f0 Arial;}}{\*\generator x;}One\par{\pict\jpegblip " + b"ab" * 300 + rb"}Two\par}",
            "One\n\nTwo",
        ),
    ],
    ids=["code page", "unicode", "picture"],
)
def test_rich_text_is_its_text(source: bytes, text: str) -> None:
    assert "\n\n".join(block.text for block in load_document(source, "a.rtf").blocks) == text


def test_rich_text_tables_keep_their_header() -> None:
    row = rb"\trowd\cellx1\cellx2 %s\cell %s\cell\row "
    source = rb"{\rtf1 " + row % (b"Zone", b"Price") + row % (b"Kestrel", b"417") + rb"\pard End\par}"
    assert [block.text for block in load_document(source, "a.rtf").blocks] == [
        "| Zone | Price |\n| --- | --- |\n| Kestrel | 417 |",
        "End",
    ]


WORD = make_ole({"WordDocument": b"\xec\xa5" + bytes(5000), "1Table": b""})


def test_old_word_files_need_a_converter(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedFormat, match=r"LibreOffice.*unsupported here"):
        load_document(WORD, "a.doc")


def test_old_slides_are_converted_and_read_as_new_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "converted.pptx").write_bytes(saved(make_pptx()))
    program = tmp_path / "soffice"
    # the folder that it is to write to comes after --outdir, the file last
    program.write_text(f'#!/bin/sh\nfor last; do :; done\n/bin/cp {tmp_path}/converted.pptx "${{last%.ppt}}.pptx"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    document = load_document(make_ole({"PowerPoint Document": bytes(5000)}), "a.ppt")
    assert document.loader == "doc"
    assert (1, ("关羽",), "above") in places(document)
    program.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(DamagedFile, match="LibreOffice could not convert"):
        load_document(WORD, "a.doc")
    monkeypatch.setattr(legacy, "_SECONDS", 0.1)
    program.write_text("#!/bin/sh\n/bin/sleep 5\n")
    with pytest.raises(DamagedFile, match="TimeoutExpired"):
        load_document(WORD, "a.doc")


ENCRYPTED = '<manifest xmlns:m="x"><m:encryption-data/></manifest>'


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.xlsx", make_ole({"EncryptedPackage": b"x"}), "encrypted Office file"),
        ("a.doc", make_ole({"WordDocument": b"\xec\xa5".ljust(11, b"\0") + b"\x01"}), "encrypted document"),
        ("a.odt", make_odf("text", "<text:p>x</text:p>", ENCRYPTED), "encrypted document"),
        ("a.xlsx", make_zip({"readme.txt": "x"}), "no Excel workbook"),
        ("a.pptx", make_zip({"readme.txt": "x"}), "no presentation"),
        ("a.epub", make_zip({"readme.txt": "x"}), "container.xml"),
        ("a.odt", make_zip({"readme.txt": "x"}), "manifest.xml"),
        ("a.xls", XLS[:1500], "binary"),
        ("a.pptx", b"just text", "not a zip"),
        ("a.msg", b"just text", "broken Outlook mail"),
        ("a.png", b"just text", "no picture"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(name: str, data: bytes, reason: str) -> None:
    with pytest.raises(DamagedFile, match=reason):
        load_document(data, name)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.xlsx", saved(make_xlsx(s=[]))),
        ("a.pptx", saved(pptx.Presentation())),
        ("a.odt", make_odf("text", "<text:p/>")),
        ("a.epub", make_epub({"a.xhtml": ""})),
        ("a.rtf", rb"{\rtf1 }"),
    ],
)
def test_documents_without_text_are_empty(name: str, data: bytes) -> None:
    with pytest.raises(EmptyDocument):
        load_document(data, name)


@pytest.mark.parametrize("name", ["a.xlsx", "a.pptx", "a.xls", "a.odt", "a.epub"])
def test_damage_anywhere_is_a_clear_error(name: str) -> None:
    sound = {
        "a.xlsx": saved(make_xlsx(s=[["a", "b"], [1, "x"]])),
        "a.pptx": saved(make_pptx()),
        "a.xls": XLS,
        "a.odt": make_odf("text", "<text:p>one</text:p>"),
        "a.epub": make_epub({"a.xhtml": "<p>one</p>"}),
    }[name]
    for position in range(0, len(sound), len(sound) // 40 + 1):
        broken = bytearray(sound)
        broken[position] ^= 0x5A
        try:
            blocks: tuple[Block, ...] = load_document(bytes(broken), name).blocks
        except (DamagedFile, EmptyDocument, UnsupportedFormat):
            continue
        assert blocks


WORD_KIND = "openxmlformats-officedocument.wordprocessingml.document"
SLIDES_KIND = "openxmlformats-officedocument.presentationml.presentation"
SHEET_KIND = "openxmlformats-officedocument.spreadsheetml.sheet"


def retyped(data: bytes, old: str, new: str) -> bytes:
    """The same package that says it is of another kind."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    types = members["[Content_Types].xml"]
    members["[Content_Types].xml"] = types.replace(f"vnd.{old}.main".encode(), f"vnd.{new}.main".encode())
    assert members["[Content_Types].xml"] != types
    return make_zip(members)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("a.docm", WORD_KIND, "ms-word.document.macroEnabled"),
        ("a.dotx", WORD_KIND, "openxmlformats-officedocument.wordprocessingml.template"),
        ("a.dotm", WORD_KIND, "ms-word.template.macroEnabledTemplate"),
        ("a.pptm", SLIDES_KIND, "ms-powerpoint.presentation.macroEnabled"),
        ("a.ppsx", SLIDES_KIND, "openxmlformats-officedocument.presentationml.slideshow"),
        ("a.ppsm", SLIDES_KIND, "ms-powerpoint.slideshow.macroEnabled"),
        ("a.potm", SLIDES_KIND, "ms-powerpoint.template.macroEnabled"),
        ("a.xlsm", SHEET_KIND, "ms-excel.sheet.macroEnabled"),
        ("a.xltm", SHEET_KIND, "ms-excel.template.macroEnabled"),
    ],
)
def test_macros_and_templates_read_as_their_siblings(name: str, old: str, new: str) -> None:
    document: Any = docx.Document()
    document.add_paragraph("Permit 3307")
    siblings = {WORD_KIND: document, SLIDES_KIND: make_pptx(), SHEET_KIND: make_xlsx(s=[["a"], ["3307"]])}
    data = saved(siblings[old])
    found = load_document(retyped(data, old, new), name)
    assert found.blocks == load_document(data, name).blocks
    assert found.warnings == ()


@pytest.mark.parametrize("name", ["a.xlsb", "a.xlsx"])
def test_a_binary_workbook_names_the_way_out(name: str) -> None:
    data = make_zip({"[Content_Types].xml": "<Types/>", "xl/workbook.bin": b"\x83\1\0"})
    with pytest.raises(UnsupportedFormat, match=r"xlsb，请在 Excel 中另存为 xlsx.*save it as xlsx"):
        load_document(data, name)
    with pytest.raises(UnsupportedFormat, match=r"\.xlsb.*save it as xlsx"):
        loader_for("a.xlsb")
