"""XML, outlines, subtitles, notebooks, mails and archives; and what decides which loader reads a file."""

from __future__ import annotations

import io
import json
import re
import stat
import zipfile
from email.message import EmailMessage
from pathlib import Path

import pytest
from PIL import Image
from pyzipper import WZ_AES, ZIP_DEFLATED, AESZipFile

from server.domain import LoadedDocument
from server.errors import DamagedFile, EmptyDocument, LoadError, UnsupportedFormat
from server.ingest.loaders import archive, image
from server.ingest.loaders.factory import SUPPORTED_EXTENSIONS, is_light, load_document, loader_for
from tests.ingest.makers import XLS, make_forwarded, make_locked_zip, make_msg, make_odf, make_ole, make_zip
from tests.ingest.pdf_maker import make_pdf


def load(name: str, content: str | bytes) -> LoadedDocument:
    return load_document(content.encode() if isinstance(content, str) else content, name)


def places(name: str, content: str | bytes) -> list[tuple[tuple[str, ...], str]]:
    return [(block.headings, block.text) for block in load(name, content).blocks]


def texts(name: str, content: str | bytes) -> list[str]:
    return [text for _, text in places(name, content)]


# --- XML

ARTICLE = """<?xml version="1.0"?><!DOCTYPE article PUBLIC "-//X//DTD//EN" "http://127.0.0.1:9/x.dtd">
<article><meta><id>7</id><year>2026</year></meta><body><sec><title>Boilers</title><p>Hot <b>water</b>&nbsp;&amp; steam.</p>
<sec><title>阀门</title><p>Brass.</p></sec></sec></body></article>"""


def test_xml_has_fields_paragraphs_and_titles() -> None:
    assert places("a.xml", ARTICLE) == [
        ((), "id: 7\nyear: 2026"),
        (("Boilers",), "Boilers"),
        (("Boilers",), "Hot water & steam."),
        (("Boilers", "阀门"), "阀门"),
        (("Boilers", "阀门"), "Brass."),
    ]


def test_feeds_lose_the_tags_of_their_texts() -> None:
    item = "<item><title>News</title><description><![CDATA[<p>a <i>b</i></p><script>x</script>]]></description></item>"
    assert texts("a.rss", f"<rss><channel>{item}</channel></rss>") == ["title: News\ndescription: a b"]


@pytest.mark.parametrize(
    "data",
    [
        "<?xml version='1.0' encoding='utf-16'?><r>潮汐</r>".encode("utf-16"),
        "<?xml version='1.0' encoding='x-odd'?><r>潮汐</r>".encode(),
    ]
    + [
        "<?xml version='1.0' encoding='GBK'?><r>潮汐</r>".encode("gbk"),
        "<?xml version='1.0'?><r>仓库管理员须在退潮之前关闭北闸，并且记录当天的潮汐</r>".encode("gb18030"),
    ],
    ids=["utf-16", "unknown", "gbk", "undeclared"],
)
def test_xml_in_any_encoding(data: bytes) -> None:
    assert texts("a.xml", data)[-1].endswith("潮汐")


def test_entities_that_multiply_are_refused() -> None:
    names = [f"e{n}" for n in range(12)]
    defined = "".join(f'<!ENTITY {a} "{f"&{b};" * 12}">' for a, b in zip(names[1:], names, strict=False))
    bomb = f'<!DOCTYPE r [<!ENTITY e0 "boom boom boom boom boom">{defined}]><r>&e11;</r>'
    with pytest.raises(DamagedFile, match="entities that are not allowed"):
        load("a.xml", bomb)


def test_nothing_outside_an_xml_file_is_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("root:x:0:0")
    page = f'<!DOCTYPE r [<!ENTITY x SYSTEM "file://{secret}">]><r><p>safe &x;</p></r>'
    assert texts("a.xml", page) == ["safe"]
    inside = page.replace("<r>", '<r xmlns:xi="http://www.w3.org/2001/XInclude">').replace(
        "</r>", f'<xi:include href="file://{secret}" parse="text"/></r>'
    )
    assert "root" not in "".join(texts("a.xml", inside))


def test_deep_xml_is_read_or_refused() -> None:
    deep = "<a>" * 200_000 + "x" + "</a>" * 200_000
    with pytest.raises(DamagedFile, match="malformed XML"):
        load("a.xml", deep)


# --- outlines, subtitles, notebooks

RST = """=====
Guide
=====

Intro.

Setup
-----

.. code-block:: sh

   make all

===== =====
a     b
===== =====

More
~~~~
End.
"""
ORG = """Before
* Guide :tag:
Intro.
#+BEGIN_SRC sh
* no heading
#+END_SRC
** TODO 设置
End."""


def test_restructured_text_and_org_have_heading_paths() -> None:
    assert [(path, text.split("\n")[-1]) for path, text in places("a.rst", RST)] == [
        (("Guide",), "====="),
        (("Guide",), "Intro."),
        (("Guide", "Setup"), "-----"),
        (("Guide", "Setup"), ".. code-block:: sh"),
        (("Guide", "Setup"), "   make all"),
        (("Guide", "Setup"), "===== ====="),
        (("Guide", "Setup", "More"), "~~~~"),
        (("Guide", "Setup", "More"), "End."),
    ]
    assert places("a.org", ORG) == [
        ((), "Before"),
        (("Guide",), "* Guide :tag:"),
        (("Guide",), "Intro.\n#+BEGIN_SRC sh\n* no heading\n#+END_SRC"),
        (("Guide", "设置"), "** TODO 设置"),
        (("Guide", "设置"), "End."),
    ]


SRT = "1\n00:00:01,000 --> 00:00:02,000\n<i>First</i> line\nin two\n\n2\n00:01:03,500 --> 00:01:04,000\nSecond\n"
VTT = """WEBVTT - x

NOTE hidden

STYLE
::cue {color: red}

intro
00:11.000 --> 00:13.000 align:start
<v Ann>We are &amp; were

00:13.000 --> 00:15.000
<v Ann>We are &amp; were
"""


def test_subtitles_are_what_is_said_with_its_time() -> None:
    (block,) = load("a.srt", SRT).blocks
    assert (block.text, block.metadata["time"]) == ("First line in two\nSecond", "00:00:01")
    (block,) = load("a.vtt", VTT).blocks
    assert (block.text, block.metadata["time"]) == ("Ann: We are & were", "00:11")


def test_notebooks_have_texts_code_and_output() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Guide\n", "## Setup\n", "Text."]},
        {"cell_type": "code", "source": "print(1)", "outputs": [{"text": ["1\n"]}, {"data": {"image/png": "AAAA"}}]},
        {"cell_type": "markdown", "source": "## Next"},
    ]
    assert places("a.ipynb", json.dumps({"cells": cells})) == [
        (("Guide",), "# Guide"),
        (("Guide", "Setup"), "## Setup"),
        (("Guide", "Setup"), "Text."),
        (("Guide", "Setup"), "print(1)"),
        (("Guide", "Setup"), "1"),
        (("Guide", "Next"), "## Next"),
    ]
    with pytest.raises(DamagedFile, match="no valid notebook"):
        load("a.ipynb", '{"cells": [1]}')


# --- mails


def make_mail(**attachments: bytes) -> EmailMessage:
    mail = EmailMessage()
    mail["Subject"], mail["From"], mail["To"] = "潮汐 report", "Ann <a@x.org>", "b@x.org"
    mail.set_content("Grüße\n\nSecond.", charset="iso-8859-1")
    mail.add_alternative("<p>HTML twin</p>", subtype="html")
    for name, data in attachments.items():
        mail.add_attachment(data, "application", "octet-stream", filename=name.replace("_", "."))
    return mail


def test_mails_have_a_head_a_body_and_attachments() -> None:
    mail = make_mail(表_csv=b"a,b\n1,2\n3,4\n", broken_pdf=b"%PDF-nothing")
    document = load("a.eml", mail.as_bytes())
    assert [(block.headings, block.text) for block in document.blocks] == [
        (("潮汐 report",), "潮汐 report"),
        (("潮汐 report",), "From: Ann <a@x.org>\nTo: b@x.org"),
        (("潮汐 report",), "Grüße"),
        (("潮汐 report",), "Second."),
        (("潮汐 report", "表.csv"), "表.csv"),
        (("潮汐 report", "表.csv"), "a: 1; b: 2"),
        (("潮汐 report", "表.csv"), "a: 3; b: 4"),
    ]
    assert document.warnings[0].startswith("broken.pdf: 文件无法读取")


def test_mails_with_html_only_and_mails_in_mails() -> None:
    mail = EmailMessage()
    mail["Subject"] = "outer"
    mail.set_content("<p>Only <b>HTML</b></p><script>x</script>", subtype="html")
    mail.add_attachment(make_mail())
    assert "Only HTML" in texts("a.eml", mail.as_bytes())
    assert "Grüße" in texts("a.eml", mail.as_bytes())


def test_sealed_mails_are_empty() -> None:
    sealed = b"Subject: s\nContent-Type: multipart/encrypted; boundary=b\n\n--b\n\nVersion: 1\n--b\n\n-----BEGIN PGP\n--b--\n"
    with pytest.raises(EmptyDocument, match=r"加密.*encrypted\?"):
        load("a.eml", sealed)


def test_members_of_an_archive_open_with_its_password() -> None:
    locked = make_locked_zip("a.txt", b"Permit 3307", "secret")
    assert [block.text for block in load_document(locked, "a.zip", password="secret").blocks] == [
        "a.txt",
        "Permit 3307",
    ]
    with pytest.raises(DamagedFile, match=r"a\.txt.*passwords"):
        load("a.zip", locked)
    for wrong in ("hunter2", "\ud800"):
        with pytest.raises(DamagedFile, match=r"a\.txt.*wrong password") as found:
            load_document(locked, "a.zip", password=wrong)
        assert wrong not in found.value.message


@pytest.mark.parametrize("bits", [128, 256])
def test_archives_encrypted_with_aes_open_with_their_password(bits: int) -> None:
    stream = io.BytesIO()
    with AESZipFile(stream, "w", ZIP_DEFLATED, encryption=WZ_AES, encryption_kwargs={"nbits": bits}) as packed:
        packed.setpassword("密码".encode())
        packed.writestr("sub/许可.txt", "Permit 3307 " * 9)
        packed.writestr("b.txt", "Berth 12")
    locked = stream.getvalue()
    document = load_document(locked, "a.zip", password="密码")
    assert [block.text for block in document.blocks] == [
        "sub/许可.txt",
        "Permit 3307 " * 8 + "Permit 3307",
        "b.txt",
        "Berth 12",
    ]
    with pytest.raises(DamagedFile, match=r"许可\.txt.*passwords"):
        load("a.zip", locked)
    with pytest.raises(DamagedFile, match="wrong password") as found:
        load_document(locked, "a.zip", password="hunter2")
    assert "hunter2" not in found.value.message
    with pytest.raises(DamagedFile, match="wrong password"):
        load_document(make_locked_zip("a.txt", b"x", "secret", method=99), "a.zip", password="secret")


def test_a_locked_file_in_an_archive_opens_with_the_same_password() -> None:
    packed = make_zip({"a.pdf": make_pdf([["Permit 3307"]], password="secret")})
    assert load_document(packed, "a.zip", password="secret").blocks[-1].text == "Permit 3307"


def test_saved_pages_are_their_html() -> None:
    page = b"MIME-Version: 1.0\nContent-Type: multipart/related; boundary=b\n\n--b\nContent-Type: text/html\n"
    page += b"Content-Transfer-Encoding: quoted-printable\n\n<p>caf=E9 =\nau lait</p>\n--b\nContent-Type: text/css\n\nx\n--b--\n"
    assert texts("a.mht", page) == ["café au lait"]
    assert load("a.doc", page).loader == "mhtml"


# The example of the format's specification.
PACKED = bytes.fromhex(
    "2d0000002b0000004c5a4675f1c5c7a703000a007263706731323542320af32068656c090020627705b06c647d0a800fa0"
)


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"1000": "Plain\r\n\r\nbody"}, "Plain"),
        ({"1013": b"<p>Page</p>".ljust(4096)}, "Page"),
        ({"1009": PACKED}, "hello world"),
    ],
    ids=["plain", "html", "rtf"],
)
def test_outlook_mails_read_like_others(properties: dict[str, str | bytes], text: str) -> None:
    attached = ("a.txt", "附件 ".encode() * 600)
    data = make_msg(
        {"0037": "潮汐", "0C1A": "Ann", "0E04": "b@x.org", **properties}, attached, sent=133_000_000_000_000_000
    )
    found = places("a.msg", data)
    assert found[:2] == [(("潮汐",), "潮汐"), (("潮汐",), "From: Ann\nTo: b@x.org\nDate: 2022-06-18 04:26 UTC")]
    assert found[2] == (("潮汐",), text)
    assert found[-2:-1] == [(("a.txt",), "a.txt")]


def test_an_outlook_mail_in_another_is_read() -> None:
    data = make_forwarded({"0037": "Fwd", "1000": "see below"}, {"0037": "Tides", "1000": "high at noon"}, depth=1)
    date = "Date: 1601-01-01 00:00 UTC"
    assert places("a.msg", data)[2:] == [
        (("Fwd",), "see below"),
        (("Tides",), "Tides"),
        (("Tides", "Tides"), "Tides"),
        (("Tides", "Tides"), date),
        (("Tides", "Tides"), "high at noon"),
    ]


def test_outlook_mails_in_each_other_end_somewhere() -> None:
    document = load("a.msg", make_forwarded({"0037": "0"}, {"1000": "deeper"}, depth=4))
    assert sum(block.text == "deeper" for block in document.blocks) == 3
    assert "nested deeper than 3" in document.warnings[0]


# --- archives


def test_what_is_no_document_is_left_out_of_an_archive() -> None:
    junk = (
        ".DS_Store",
        "~$real.txt",
        ".secret.md",
        "Thumbs.db",
        "sub/.git/config.txt",
        "a/__MACOSX/real.txt",
        "a/~$b.md",
    )
    packed = make_zip({**dict.fromkeys(junk, "junk"), "./sub/real..md": "real body 12"})
    document = load("a.zip", packed)
    assert [block.text for block in document.blocks] == ["./sub/real..md", "real body 12"]
    assert document.warnings == ()


def test_members_stand_under_their_names() -> None:
    inner = make_zip({"b.md": "# Title\n\ntext"})
    packed = make_zip(
        {"dir/": "", "dir/a.txt": "one", "__MACOSX/x": "junk", "in.zip": inner, "x.bin": b"\0\1", "e.txt": ""}
    )
    document = load("a.zip", packed)
    assert [(block.headings, block.text) for block in document.blocks] == [
        (("dir/a.txt",), "dir/a.txt"),
        (("dir/a.txt",), "one"),
        (("in.zip",), "in.zip"),
        (("in.zip", "b.md"), "b.md"),
        (("in.zip", "b.md", "Title"), "# Title"),
        (("in.zip", "b.md", "Title"), "text"),
    ]
    assert [warning.split(":")[0] for warning in document.warnings] == ["x.bin"]


@pytest.mark.parametrize("codec", ["gb18030", "utf-8"])
def test_names_of_members_in_an_old_code_page_are_readable(codec: str) -> None:
    placeholder = "n" * len("审计报告.txt".encode(codec))
    packed = make_zip({placeholder: "one"}).replace(placeholder.encode(), "审计报告.txt".encode(codec))
    assert texts("a.zip", packed)[0] == "审计报告.txt"


def test_links_and_paths_that_lead_out_are_refused() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        for name in ("../../evil.txt", "/abs.txt", "C:\\win.txt", "ok.txt"):
            packed.writestr(zipfile.ZipInfo(name), "text of it")
        link = zipfile.ZipInfo("link.txt")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        packed.writestr(link, "/etc/passwd")
    document = load("a.zip", stream.getvalue())
    assert [block.text for block in document.blocks] == ["ok.txt", "text of it"]
    assert len(document.warnings) == 4
    assert all("已拒绝" in warning for warning in document.warnings)


def _nested(levels: int) -> bytes:
    data = make_zip({"a.txt": "deep"})
    for _ in range(levels):
        data = make_zip({"in.zip": data})
    return data


def test_archives_are_opened_three_deep() -> None:
    assert texts("a.zip", _nested(2))[-1] == "deep"
    with pytest.raises(DamagedFile, match="nested deeper than 3"):
        load("a.zip", _nested(3))


@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        (make_zip({"a.txt": bytes(30_000_000)}), "zip bomb"),
        (make_zip({}), "no text"),
        (make_zip({"a.txt": "x" * 999})[:-40], "broken or cut off"),
        (make_zip({"a.bin": b"\0\1\2"}), "nothing in the archive could be read"),
    ],
    ids=["bomb", "empty", "cut", "unreadable"],
)
def test_archives_that_cannot_be_read_say_why(packed: bytes, reason: str) -> None:
    with pytest.raises(LoadError, match=reason):
        load("a.zip", packed)


def test_archives_of_too_many_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_MEMBERS", 2)
    with pytest.raises(DamagedFile, match="more than 2 members"):
        load("a.zip", make_zip({"a.txt": "x", "b.txt": "x", "c.txt": "x"}))


# --- pictures


def picture(size: tuple[int, int] = (40, 30)) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, "white").save(stream, "PNG")
    return stream.getvalue()


def test_pictures_need_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "ocr_installed", lambda: False)
    with pytest.raises(UnsupportedFormat, match=r"pip install 'zhiku\[ocr\]'"):
        load("a.png", picture())


def test_pictures_are_the_text_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "ocr_installed", lambda: True)
    monkeypatch.setattr(image, "read_picture", lambda array: f"{array.shape}")
    assert texts("a.jpg", picture()) == ["(30, 40, 3)"]
    monkeypatch.setattr(image, "read_picture", lambda array: "")
    with pytest.raises(EmptyDocument, match="no text was found"):
        load("a.png", picture())


def test_picture_bombs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "MAX_PIXELS", 1000)
    with pytest.raises(DamagedFile, match="megapixels"):
        load("a.png", picture((100, 100)))


def test_broken_pictures_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "ocr_installed", lambda: True)
    with pytest.raises(DamagedFile, match="broken"):
        load("a.png", picture((400, 300))[:60])


# --- content and extension


@pytest.mark.parametrize(
    ("name", "content", "loader"),
    [
        ("a.docx", make_pdf([["x"]]), "pdf"),
        ("a.txt", make_pdf([["x"]]), "pdf"),
        ("README", make_pdf([["x"]]), "pdf"),
        ("a.xlsx", XLS, "xls"),
        ("a.doc", b"{\\rtf1 x}", "rtf"),
        ("a.doc", b"<html><body>x", "html"),
        ("a.doc", b"plain words", "text"),
        ("a.xls", b"<html><table><tr><td>x", "html"),
        ("a.xls", b"a\tb\n1\t2\n", "csv"),
        ("a.pdf", b"<!DOCTYPE html><p>x", "html"),
        ("a.zip", make_odf("text", "<text:p>x</text:p>"), "odf"),
        ("README", b"plain words", "text"),
        ("page", b"<!-- c -->\n<html><p>x", "html"),
        ("mail", b"From: a@x.org\nSubject: s\n\nx", "mail"),
        ("a.txt", b"<html>is a tag", "text"),
        ("a.txt", b"ID3 tags and GIF89a", "text"),
        ("a.txt", b"GIF89a and BZh", "text"),
        ("a.md", b"From: the start", "markdown"),
        ("a.tmp", make_pdf([["x"]]), "pdf"),
    ],
)
def test_the_content_decides_and_a_wrong_extension_is_told(name: str, content: bytes, loader: str) -> None:
    document = load(name, content)
    assert document.loader == loader
    right = loader in ("text", "markdown") and not name.endswith(".doc")
    nameless = "." not in name or name.endswith(".tmp")
    assert any("扩展名" in note for note in document.warnings) is not (right or nameless)


@pytest.mark.parametrize(
    ("name", "content", "error", "reason"),
    [
        ("a.pdf", b"plain words", DamagedFile, "no PDF"),
        ("a.txt", b"\x7fELF" + bytes(100), UnsupportedFormat, "unsupported content: ELF"),
        ("a.docx", b"Rar!\x1a\x07" + bytes(100), UnsupportedFormat, "unsupported content: rar"),
        ("a.docx", make_zip({"x.txt": "x"}), DamagedFile, "no Word document"),
        ("a.txt", bytes(range(256)) * 20, DamagedFile, "not text"),
        ("a.doc", make_ole({"Odd": b"x"}), DamagedFile, "binary"),
        ("a.bin", b"plain words", UnsupportedFormat, "unsupported format .bin"),
        ("a.mp4", b"\0\0\0\x18ftypmp42" + bytes(100), UnsupportedFormat, "unsupported content: mp4"),
    ],
)
def test_what_no_loader_reads_is_refused(name: str, content: bytes, error: type[LoadError], reason: str) -> None:
    with pytest.raises(error, match=reason):
        load(name, content)


def test_light_files_are_plain_text_and_what_is_refused_anyway() -> None:
    assert is_light(b"x", "a.md")
    assert is_light(b"x", "a.odd")
    assert not is_light(b"<p>", "a.html")
    assert not is_light(make_pdf([["x"]]), "a.txt")


def test_the_page_on_formats_lists_what_can_be_loaded() -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
    table = page.partition("|---|")[2].partition("\n\n")[0]
    named = {f".{word}" for row in table.split("\n")[1:] for word in re.findall(r"\b[a-z0-9]+\b", row.split("|")[1])}
    words = {".log", ".source", ".code", ".no", ".extension"}
    assert named - words <= SUPPORTED_EXTENSIONS
    assert {loader.name for loader in map(loader_for, (f"a{name}" for name in named - words))} == {
        loader_for(f"a{name}").name for name in SUPPORTED_EXTENSIONS
    }
