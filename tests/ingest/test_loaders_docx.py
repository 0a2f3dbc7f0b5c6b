"""Word documents: paragraphs and tables in order, each text once."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import docx
import pytest
from docx.oxml import parse_xml

from server.domain import Block, LoadedDocument
from server.errors import DamagedFile, EmptyDocument
from server.ingest.loaders import archive
from server.ingest.loaders.factory import loader_for

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def load(data: bytes) -> LoadedDocument:
    return loader_for("a.docx").load(data, "a.docx")


def load_word(document: Any) -> tuple[Block, ...]:
    stream = io.BytesIO()
    document.save(stream)
    return load(stream.getvalue()).blocks


def fill(table: Any, rows: list[list[str]]) -> None:
    for row, texts in zip(table.rows, rows, strict=True):
        for cell, text in zip(row.cells, texts, strict=True):
            cell.text = text


def test_the_body_comes_in_order_under_its_headings() -> None:
    document = docx.Document()
    document.add_heading("手册", 0)
    document.add_heading("Zones", 1)
    document.add_paragraph("Before.")
    fill(document.add_table(2, 2), [["Zone", "Price"], ["Kestrel", "417"]])
    document.add_heading("Deep", 2)
    document.add_paragraph("After.\tTab")
    document.add_heading("Next", 1)
    document.add_paragraph("End.")
    assert [(block.text, block.headings) for block in load_word(document)] == [
        ("手册", ("手册",)),
        ("Zones", ("手册", "Zones")),
        ("Before.", ("手册", "Zones")),
        ("| Zone | Price |\n| --- | --- |\n| Kestrel | 417 |", ("手册", "Zones")),
        ("Deep", ("手册", "Zones", "Deep")),
        ("After.\tTab", ("手册", "Zones", "Deep")),
        ("Next", ("手册", "Next")),
        ("End.", ("手册", "Next")),
    ]


def test_cells_merged_over_rows_name_every_row_and_equal_neighbours_stay() -> None:
    document = docx.Document()
    table = document.add_table(4, 3)
    fill(table, [["Item", "plan", "actual"], ["Q1", "70", "70"], ["wide", "", "1"], ["", "x", "70"]])
    table.cell(2, 0).merge(table.cell(2, 1))
    table.cell(1, 2).merge(table.cell(3, 2)).text = "tall"
    table._tbl.tr_lst[2].tc_lst[-1].p_lst[0].append(parse_xml(f"<w:r {W}><w:t>covered</w:t></w:r>"))
    (block,) = load_word(document)
    assert block.text.split("\n")[2:] == ["| Q1 | 70 | tall |", "| wide |  | tall |", "|  | x | tall |"]
    assert block.whole


def test_every_part_of_a_long_table_repeats_the_header() -> None:
    document = docx.Document()
    fill(document.add_table(31, 2), [["Name", "Depth"], *([f"mooring {n}", f"{n} fathoms"] for n in range(30))])
    blocks = load_word(document)
    assert len(blocks) > 2
    assert all(block.text.startswith("| Name | Depth |\n| --- | --- |\n| mooring") for block in blocks)
    assert sum(block.text.count("fathoms") for block in blocks) == 30
    assert max(len(block.text) for block in blocks) <= 250


def test_nested_tables_links_and_text_boxes_are_read_and_deleted_text_is_not() -> None:
    document = docx.Document()
    outer = document.add_table(2, 2)
    fill(outer, [["a", "b"], ["c", ""]])
    fill(outer.cell(1, 1).add_table(1, 2), [["in", "ner"]])
    paragraph = document.add_paragraph("See ")
    for xml in (
        f"<w:hyperlink {W}><w:r><w:t>the link</w:t></w:r></w:hyperlink>",
        f"<w:del {W}><w:r><w:delText>gone</w:delText></w:r></w:del>",
        f"<w:r {W}><w:pict><w:txbxContent><w:p><w:r><w:t>boxed</w:t></w:r></w:p></w:txbxContent></w:pict></w:r>",
    ):
        paragraph._p.append(parse_xml(xml))
    table, *rest = (block.text for block in load_word(document))
    assert table.endswith("| c | in \\| ner |")
    assert rest == ["See the link", "boxed"]


def test_headers_and_footers_come_once() -> None:
    document = docx.Document()
    document.add_paragraph("Body")
    document.sections[0].header.paragraphs[0].text = "QX-5512"
    document.sections[0].footer.paragraphs[0].text = "QX-5512"
    other = document.add_section()
    other.header.is_linked_to_previous = False
    other.header.paragraphs[0].text = "Part two"
    assert sorted(block.text for block in load_word(document)) == ["Body", "Part two", "QX-5512"]


def test_a_document_without_text_is_empty() -> None:
    with pytest.raises(EmptyDocument, match="no text"):
        load_word(docx.Document())


def archive_of(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes"),
        (b"plain text", "not a zip"),
        (archive_of({"readme.txt": b"hello"}), "no Word document"),
        (archive_of({"readme.txt": b"hello"})[:-30], "cut off"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "password"),
        (archive_of({"word/document.xml": bytes(30_000_000)}), "zip bomb"),
    ],
    ids=["empty", "text", "another zip", "cut", "old Word", "bomb"],  # the bytes hold the time
)
def test_what_is_no_word_document_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(DamagedFile, match=reason):
        load(data)


def test_damage_anywhere_in_the_file_is_a_clear_error() -> None:
    document = docx.Document()
    document.add_paragraph("Body")
    stream = io.BytesIO()
    document.save(stream)
    sound = stream.getvalue()
    for position in range(0, len(sound), len(sound) // 150):
        broken = bytearray(sound)
        broken[position] ^= 0x5A
        try:
            blocks = load(bytes(broken)).blocks
        except (DamagedFile, EmptyDocument):
            continue
        assert blocks


def test_archives_that_unpack_too_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_UNPACKED", 99)
    archive.open_archive(archive_of({"a": bytes(99)})).close()
    with pytest.raises(DamagedFile, match="zip bomb"):
        archive.open_archive(archive_of({"a": bytes(50), "b": bytes(50)}))
