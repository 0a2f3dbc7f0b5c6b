"""Names from clients are labels: what is refused, what works, and that nothing leaves the data root."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from server.errors import InvalidName
from server.names import file_key, file_label, is_junk, kb_key, kb_label
from tests.conftest import Api

BAD_KB = [
    "../esc",
    "..\\esc",
    ".",
    "..",
    "a/../../esc",
    "a/b",
    "/abs",
    "a\x00b",
    "ｅｓｃ／..",
    "．．",
    "x" * 101,
    "a\nb",
]
BAD_FILE = [
    r"",
    r".",
    r"..",
    r"../x.txt",
    r"..\x.txt",
    r"/etc/x.txt",
    r"C:\x.txt",
    r"c:x.txt",
    r"a//b.txt",
    r"a/../b.txt",
    r"a/./b.txt",
    r"．．/x.txt",
]
BAD_FILE += ["a\x00b.txt", "tab\tname.txt", "a\u2028b.txt", "x" * 300 + ".txt", "名" * 90 + ".txt"]
GOOD_FILE = [
    "a.txt",
    "end. ",
    " lead.txt",
    "CON.txt",
    "name.txt.",
    "a%b_c.txt",
    "100%.md",
    "a%2Fb.txt",
    "driver's guide.txt",
    "~$a.docx",
]
GOOD_FILE += ["emoji 🛶.txt", "#1 & 2?.txt", "wiki/开发环境部署.MD", "x" * 251 + ".txt", "名" * 80 + ".txt"]


@pytest.mark.parametrize("name", BAD_KB)
def test_a_knowledge_base_cannot_be_called(name: str) -> None:
    with pytest.raises(InvalidName, match="Don't attack me"):
        kb_label(name)


@pytest.mark.parametrize("name", ["知识库一", "a-b@c d", "k%_1", "v1.2", "...", "con", "  trimmed "])
def test_a_knowledge_base_can_be_called(name: str) -> None:
    assert kb_label(name) == name.strip()


@pytest.mark.parametrize("name", BAD_FILE)
def test_a_file_cannot_be_called(name: str) -> None:
    with pytest.raises(InvalidName, match="Don't attack me"):
        file_label(name)


@pytest.mark.parametrize(
    "path",
    [".DS_Store", "a/Thumbs.db", "sub/.git/config", "~$real.docx", ".~lock.a.odt#", "__MACOSX/a.md", r"a\.b\c.md"],
)
def test_what_is_no_document(path: str) -> None:
    assert is_junk(path)


@pytest.mark.parametrize("path", ["a.md", "./a.md", "../a.md", "a/.../b.md", "a.git/b", "x~$.docx", "thumbs.db.md"])
def test_what_may_be_a_document(path: str) -> None:
    assert not is_junk(path)


@pytest.mark.parametrize("name", GOOD_FILE)
def test_a_file_can_be_called(name: str) -> None:
    assert file_label(name) == name


def test_the_same_name_is_the_same_name() -> None:
    nfd = unicodedata.normalize("NFD", "테스트_café.txt")
    assert file_label(nfd) == unicodedata.normalize("NFC", nfd)
    assert file_label("sub\\win.txt") == "sub/win.txt"
    assert kb_key("Docs") == kb_key("docs") == kb_key("ＤＯＣＳ")
    assert kb_key("d_cs") != kb_key("docs")
    assert len(file_key("x" * 900)) == 64


@pytest.mark.parametrize("name", BAD_KB)
def test_every_route_refuses_a_bad_knowledge_base(api: Api, name: str) -> None:
    assert api.create(name)["code"] == 403
    assert api.upload(name, {"x.txt": "x"})["code"] in (403, 404)
    assert api.delete_docs(name, "x.txt")["code"] == 403
    assert api.search(name, "x")["code"] == 403
    assert api.delete(name)["code"] == 403
    assert api.post("/knowledge_base/recreate_vector_store", knowledge_base_name=name)["code"] == 403
    assert api.post("/chat/knowledge_base_chat", knowledge_base_name=name, query="x")["code"] == 403
    for route, more in (("list_files", {}), ("download_doc", {"file_name": "x.txt"})):
        response = api.http.get(f"/knowledge_base/{route}", params={"knowledge_base_name": name, **more})
        assert response.json()["code"] == 403
    assert api.http.get("/knowledge_base/list_knowledge_bases").json()["data"] == []


def test_downloads_never_leave_the_knowledge_base(api: Api) -> None:
    api.create("pt1")
    api.create("pt1b")
    api.upload("pt1b", {"s.txt": "secret"})
    for name in ("../../../etc/hostname", "..%2f..%2fx", "....//....//x", "/etc/hostname", "%2e%2e/%2e%2e/etc/hostname",
                 "ok/../../pt1b/content/s.txt", "s.txt", "../pt1b/s.txt"):  # fmt: skip
        response = api.http.get(
            "/knowledge_base/download_doc", params={"knowledge_base_name": "pt1", "file_name": name}
        )
        assert response.json()["code"] in (403, 404)
        assert "secret" not in response.text


def test_files_with_odd_names_live_a_whole_life(api: Api, settings_dir: Path) -> None:
    api.create("kb")
    names = [name for name in GOOD_FILE if name.lower().endswith((".txt", ".md"))]
    outcome = api.upload("kb", {name: f"body{n} of it" for n, name in enumerate(names)})
    assert outcome["data"]["failed_files"] == {}
    assert sorted(api.files("kb")) == sorted(names)
    for n, name in enumerate(names):
        query = {"knowledge_base_name": "kb", "file_name": name}
        assert api.http.get("/knowledge_base/download_doc", params=query).text == f"body{n} of it"
    stored = [path for path in settings_dir.rglob("*") if path.is_file() and path.parent.parent.name == "files"]
    assert len(stored) == len(names)
    assert all(path.name.isalnum() for path in stored)
    for name in names:
        assert api.delete_docs("kb", name, delete_content=True)["data"]["failed_files"] == {}
    assert api.files("kb") == []
    assert api.texts("kb", "body") == []


def test_one_name_in_two_spellings_and_two_folders(api: Api) -> None:
    api.create("kb")
    nfd = unicodedata.normalize("NFD", "테스트_café.txt")
    api.upload("kb", {nfd: "first"})
    again = api.upload("kb", {unicodedata.normalize("NFC", nfd): "second"})
    assert len(again["data"]["failed_files"]) == 1
    api.upload("kb", {"north/readme.md": "north text 71", "south/readme.md": "south text 72"})
    assert api.files("kb") == [unicodedata.normalize("NFC", nfd), "north/readme.md", "south/readme.md"]
    api.delete_docs("kb", "north/readme.md", delete_content=True)
    assert api.texts("kb", "text", search_type="keyword") == ["south text 72"]


def test_bad_names_in_one_upload_are_each_reported(api: Api) -> None:
    api.create("kb")
    for name in BAD_FILE[1:]:
        response = api.http.post(
            "/knowledge_base/upload_docs", files=[("files", (name, b"fz"))], data={"knowledge_base_name": "kb"}
        )
        assert response.status_code < 500
        if response.status_code == 200 and response.json()["code"] == 200:
            failed = response.json()["data"]["failed_files"]
            assert failed or set(api.files("kb")) <= {
                "x.txt",
                "a%00b.txt",
                "tab%09name.txt",
                "a\u2028b.txt",
            }  # as forms write them
