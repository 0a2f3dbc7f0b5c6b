"""Text, Markdown, HTML, JSON and tables of text: what a reader sees is what is loaded."""

from __future__ import annotations

import json

import pytest

from server.domain import Block, LoadedDocument
from server.errors import DamagedFile, EmptyDocument, UnsupportedFormat
from server.ingest.loaders.factory import SUPPORTED_EXTENSIONS, load_document, loader_for


def load(name: str, content: str | bytes) -> LoadedDocument:
    data = content.encode() if isinstance(content, str) else content
    return load_document(data, name)


def texts(name: str, content: str | bytes) -> list[str]:
    return [block.text for block in load(name, content).blocks]


def test_the_extension_chooses_the_loader_in_any_case() -> None:
    assert loader_for("dir.d/报告.v1.PDF").name == "pdf"
    assert loader_for("a.TXT") is loader_for("b.log")
    assert {".txt", ".md", ".html", ".csv", ".json", ".pdf", ".docx"} <= SUPPORTED_EXTENSIONS


@pytest.mark.parametrize("name", ["a.xyz", ".txt", "dir.txt/.name", ""])
def test_an_unknown_extension_is_named_with_what_is_supported(name: str) -> None:
    with pytest.raises(UnsupportedFormat, match=r"暂未支持的文件格式 .*unsupported format .*supported: .*\.docx"):
        loader_for(name)


@pytest.mark.parametrize("extension", sorted(SUPPORTED_EXTENSIONS))
@pytest.mark.parametrize("content", ["", "\n \t\u3000\n\ufeff"])
def test_a_file_without_text_is_empty(extension: str, content: str) -> None:
    with pytest.raises(EmptyDocument, match="文件为空"):
        load(f"a{extension}", content)


def test_paragraphs_of_text_keep_their_lines_and_indentation() -> None:
    assert texts("a.py", "def f():\r\n    return 1\n\n \n\n    x = 2  \n") == ["def f():\n    return 1", "    x = 2"]


MARKDOWN = """---
title: 手册
---
# Setup #

Intro *words*
on two lines.

```bash
# not a heading

make all
```

## 表格

| a | b |
| - | - |
| 1 | 2 |

- one
- two

[link]: http://example.org

Other
=====
Tail.
"""


def test_markdown_blocks_keep_their_source() -> None:
    blocks = load("a.md", MARKDOWN).blocks
    assert [(block.text, block.headings, block.whole) for block in blocks] == [
        ("title: 手册", (), True),
        ("# Setup #", ("Setup",), False),
        ("Intro *words*\non two lines.", ("Setup",), False),
        ("```bash\n# not a heading\n\nmake all\n```", ("Setup",), True),
        ("## 表格", ("Setup", "表格"), False),
        ("| a | b |\n| - | - |\n| 1 | 2 |", ("Setup", "表格"), True),
        ("- one\n- two", ("Setup", "表格"), False),
        ("[link]: http://example.org", ("Setup", "表格"), False),
        ("Other\n=====", ("Other",), False),
        ("Tail.", ("Other",), False),
    ]


HTML = """<!DOCTYPE html><html><head><meta charset="utf-8"><title>窑炉</title><style>p{color:red}</style></head><body>
<nav><a href="/">Home</a></nav><script>var secret = 1</script><template>tmpl</template><!-- note -->
<h1>Kiln</h1><p>Fire at <b>1240</b>&nbsp;degrees&lt;C, see <a href="x">the chart</a>.<br>Then rest.</p>
<p hidden>hid1</p><div style="color:red; DISPLAY : none">hid2</div>
<h2>Cones</h2><ul><li>Cone 6<li>Cone 10</ul>
<table><caption>Times</caption><tr><th>Cone</th><th>Hours</th></tr><tr><td rowspan=2>6</td><td>8</td></tr>
<tr><td>9</td></tr></table>
<pre>a
  b</pre>Loose end<footer>© 2026</footer></body></html>"""


def test_html_is_the_article_in_blocks() -> None:
    blocks = load("a.html", HTML).blocks
    assert [(block.text, block.headings) for block in blocks] == [
        ("窑炉", ()),
        ("Kiln", ("Kiln",)),
        ("Fire at 1240 degrees<C, see the chart.\nThen rest.", ("Kiln",)),
        ("Cones", ("Kiln", "Cones")),
        ("- Cone 6", ("Kiln", "Cones")),
        ("- Cone 10", ("Kiln", "Cones")),
        ("Times", ("Kiln", "Cones")),
        ("| Cone | Hours |\n| --- | --- |\n| 6 | 8 |\n| 6 | 9 |", ("Kiln", "Cones")),
        ("a\n  b", ("Kiln", "Cones")),
        ("Loose end", ("Kiln", "Cones")),
    ]


def test_html_bytes_win_over_a_wrong_declaration() -> None:
    page = "<html><head><meta charset='utf-8'></head><body><p>中国制造的机器，请看说明。</p></body></html>"
    assert texts("a.htm", page.encode("gbk")) == ["中国制造的机器，请看说明。"]


def test_html_keeps_a_page_that_is_all_aside_and_the_cells_of_a_layout() -> None:
    assert texts("a.html", "<aside>All there is.</aside>") == ["All there is."]
    layout = f"<table><tr><td><p>{'Left words. ' * 60}</p></td></tr><tr><td><p>Right</p></td></tr></table>"
    assert texts("a.html", layout)[-1] == "Right"


def test_html_cells_read_as_they_look() -> None:
    head = "<tr><th>Bird</th><th colspan=2>Note</th></tr>"
    table = f"<table>{head}<tr><td><b>Duck</b>, wild</td><td>a<p>b<br>c</td></tr></table>"
    assert texts("a.html", table) == ["| Bird | Note |  |\n| --- | --- | --- |\n| Duck, wild | a b c |  |"]


@pytest.mark.parametrize(
    "page", ["http://example.org/", "<?xml version='1.0'?><r>a</r>", "<!-- x --><?xml a?><r>a</r>"]
)
def test_html_that_is_hardly_html_is_read_without_warnings(page: str) -> None:
    assert texts("a.html", page) in (["http://example.org/"], ["a"])


def test_html_nested_without_end_is_read() -> None:
    assert texts("a.html", "<div>" * 3000 + "deep" + "</div>" * 3000) == ["deep"]


def test_rows_of_a_csv_name_their_columns() -> None:
    content = '\ufeff船名,备注,吨位\r\nTern,"first\nsecond, third",12\r\n\r\nFinch\r\nWren,x,9,extra\r\n'
    assert texts("a.csv", content) == [
        "船名: Tern; 备注: first second, third; 吨位: 12",
        "船名: Finch; 备注: ; 吨位: ",
        "船名: Wren; 备注: x; 吨位: 9; extra",
    ]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found_out_whatever_the_extension(delimiter: str) -> None:
    lines = [["name", "price"], ["tern, small", "3"], ["wren", "4"]]
    rows = "\n".join(delimiter.join(f'"{cell}"' if delimiter in cell else cell for cell in row) for row in lines)
    assert texts("a.csv", rows) == ["name: tern, small; price: 3", "name: wren; price: 4"]


def test_a_title_above_the_header_and_a_table_of_numbers() -> None:
    assert texts("a.csv", "Squares,,\n,,\n,n,square\n,2,4\n,3,9\n") == ["Squares", "n: 2; square: 4", "n: 3; square: 9"]
    assert texts("a.csv", "1,2\n3,4\n") == ["1; 2", "3; 4"]


def test_a_quote_that_is_never_closed_does_not_swallow_the_rest() -> None:
    rows = texts("a.csv", 'size,colour\n"5 inch,red\n6,blue\n7,green\n')
    assert rows[1:] == ["size: 6; colour: blue", "size: 7; colour: green"]


def test_json_is_readable_text() -> None:
    value = {
        "标题": "潮汐表",
        "items": [{"name": "北闸", "open": True}, {"name": "S", "tags": ["a", "b", 1.50]}],
        "n": None,
    }
    assert texts("a.json", json.dumps(value)) == [
        "标题: 潮汐表",
        "items.name: 北闸\nitems.open: true\nitems.name: S\nitems.tags: a, b, 1.5",
        "n: null",
    ]


def test_json_that_is_strange_but_valid_is_read() -> None:
    assert texts("a.json", '["\\ud800x"]') == ["\\ud800x"]
    assert texts("a.json", f"[{'9' * 5000}]") == ["9" * 5000]
    deep = load("a.json", "[" * 100_000 + '"deep"' + "]" * 100_000)
    assert "deep" in deep.blocks[0].text
    assert "nested" in deep.warnings[0]


def test_broken_json_is_text_with_a_warning_that_names_the_line() -> None:
    document = load("a.json", '{\n"a": 1,\n"b" 2}')
    assert document.blocks[0].text == '{\n"a": 1,\n"b" 2}'
    assert "第 3 行" in document.warnings[0]
    assert texts("a.json", '{"a": 1}\n{"a": 2}\n') == ["a: 1", "a: 2"]


def test_json_lines_skip_bad_lines_and_say_so() -> None:
    document = load("a.jsonl", '{"a": "一"}\n{"a": \n\n{"a": "\u2028三"}\n')
    assert document.blocks == (
        Block("a: 一", whole=True, metadata={"line": 1}),
        Block("a: \u2028三", whole=True, metadata={"line": 4}),
    )
    assert document.warnings[0].startswith("1 行")
    with pytest.raises(DamagedFile, match="line 1"):
        load("a.jsonl", "nothing\nof the kind")
