"""The routes of the contract: messages, shapes, coercion."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.conftest import Api

EN = "The harbour master keeps the tide table in the north office."
ZH = "泵房压力表每周校准一次，由值守人负责。"


def test_creating_says_what_the_contract_says(api: Api) -> None:
    assert api.create("手册 k@-1") == {"code": 200, "msg": "已新增知识库 手册 k@-1", "data": None}
    assert api.create("手册 k@-1") == {"code": 404, "msg": "已存在同名知识库 手册 k@-1", "data": None}
    assert api.create("  ")["code"] == 404
    assert "不能为空" in api.create("  ")["msg"]


def test_a_knowledge_base_has_its_own_way_of_splitting(api: Api) -> None:
    text = "一二三四五。" * 20
    assert api.create("kb", chunk_size=12, chunk_overlap=0)["code"] == 200
    api.upload("kb", {"a.txt": text})
    assert {len(found) for found in api.texts("kb", "一二三")} == {12}
    changed = api.post("/knowledge_base/update_split_settings", knowledge_base_name="kb", chunk_size=30)
    assert (changed["data"]["chunk_size"], changed["data"]["chunk_overlap"]) == (30, 0)
    api.upload("kb", {"b.txt": "六七八九十。" * 20})
    assert max(len(found) for found in api.texts("kb", "六七八")) == 30
    api.upload("kb", {"c.txt": "天地玄黄宇。" * 20}, chunk_size=6)
    assert [found for found in api.texts("kb", "天地玄黄") if "天" in found] == ["天地玄黄宇。"] * 20
    for wrong in ({"chunk_overlap": 30}, {"chunk_size": 0}, {"text_splitter": "Nope"}):
        assert api.post("/knowledge_base/update_split_settings", knowledge_base_name="kb", **wrong)["code"] != 200
    assert api.create("other", chunk_size=5, chunk_overlap=9)["code"] != 200


def test_names_differ_by_more_than_case(api: Api) -> None:
    api.create("Docs")
    assert api.create("docs")["code"] == 404
    assert api.create("d_cs")["code"] == 200  # "_" is no wildcard


def test_an_unknown_store_is_named_with_those_there_are(api: Api) -> None:
    answer = api.create("x", vector_store_type="oracle")
    assert answer["code"] == 422
    assert "faiss" in answer["msg"]


@pytest.mark.parametrize("body", ['"gone"', '{"knowledge_base_name": "gone"}'])
def test_deleting_takes_a_bare_string_or_an_object(api: Api, body: str) -> None:
    api.create("gone")
    response = api.http.post(
        "/knowledge_base/delete_knowledge_base", content=body, headers={"content-type": "application/json"}
    )
    assert response.json() == {"code": 200, "msg": "成功删除知识库 gone", "data": None}
    assert api.http.get("/knowledge_base/list_knowledge_bases").json()["data"] == []
    assert api.delete("gone") == {"code": 404, "msg": "未找到知识库 gone", "data": None}


def test_both_languages_are_found_with_their_place(api: Api) -> None:
    api.create("kb")
    answer = api.upload("kb", {"tide.txt": EN, "泵房.txt": ZH})
    assert (answer["code"], answer["msg"]) == (200, "文件上传与向量化完成")
    assert answer["data"]["failed_files"] == {}
    assert api.files("kb") == ["tide.txt", "泵房.txt"]
    hit = api.search("kb", "压力表校准", score_threshold=4)[0]
    assert hit["page_content"] == ZH
    assert hit["type"] == "Document"
    assert hit["metadata"]["source"] == "泵房.txt"
    assert hit["id"] == hit["metadata"]["id"]
    assert ZH[hit["metadata"]["start"] : hit["metadata"]["end"]] == ZH
    assert api.search("kb", "tide table", score_threshold=4)[0]["page_content"] == EN


def test_searching_an_unknown_or_empty_knowledge_base_gives_an_empty_array(api: Api) -> None:
    assert api.search("nowhere", "x") == []
    api.create("empty")
    assert api.search("empty", "x") == []


def test_an_empty_query_lists_the_chunks_of_a_file(api: Api) -> None:
    api.create("kb")
    api.upload("kb", {"a.txt": EN, "a_b.txt": "other text"})
    listed = api.search("kb", "", file_name="a.txt")
    assert [hit["page_content"] for hit in listed] == [EN]
    assert listed[0]["score"] == 3.0
    assert api.search("kb", "") == []


def test_null_and_strings_are_coerced(api: Api) -> None:
    api.create("kb", vector_store_type=None, embed_model=None)
    api.upload("kb", {"a.txt": EN}, override="True", chunk_size="", to_vector_store="true")
    hits = api.search("kb", "harbour", top_k="1", score_threshold="4", search_type=None, unknown_field=1)
    assert len(hits) == 1
    assert api.http.post("/knowledge_base/search_docs", json={"query": "x"}).status_code == 422


def test_an_existing_file_is_left_alone_unless_overridden(api: Api) -> None:
    api.create("kb")
    api.upload("kb", {"d.txt": "version one 301"})
    again = api.upload("kb", {"d.txt": "version two 3022"})
    assert again["data"]["failed_files"] == {"d.txt": "文件 d.txt 已存在。"}
    assert api.texts("kb", "version") == ["version one 301"]
    assert api.upload("kb", {"d.txt": "version two 302"}, override="true")["data"]["failed_files"] == {}
    assert api.texts("kb", "version") == ["version two 302"]
    assert api.files("kb") == ["d.txt"]


def test_every_file_has_its_own_outcome(api: Api) -> None:
    api.create("kb")
    failed = api.upload("kb", {"zero.txt": b"", "x.xyz": b"1", "../up.txt": b"1", "ok.txt": "fine 7"})["data"][
        "failed_files"
    ]
    assert set(failed) == {"zero.txt", "x.xyz", "../up.txt"}
    assert "暂未支持的文件格式" in failed["x.xyz"]
    assert api.files("kb") == ["ok.txt"]
    assert api.details("kb")["zero.txt"]["state"] == "failed"
    assert api.details("kb")["zero.txt"]["reason"]
    assert api.details("kb")["ok.txt"]["state"] == "ready"


def test_uploading_to_nowhere_is_refused(api: Api) -> None:
    assert api.upload("nowhere", {"a.txt": "x"}) == {"code": 404, "msg": "未找到知识库 nowhere", "data": None}


def test_files_can_be_stored_first_and_read_later(api: Api) -> None:
    api.create("kb")
    api.upload("kb", {"a.txt": EN}, to_vector_store="false")
    assert api.files("kb") == []
    answer = api.post("/knowledge_base/update_docs", knowledge_base_name="kb", file_names=["a.txt"])
    assert (answer["msg"], answer["data"]["failed_files"]) == ("更新文档完成", {})
    assert api.files("kb") == ["a.txt"]


def test_a_client_may_supply_the_chunks(api: Api) -> None:
    api.create("kb")
    docs = json.dumps({"a.txt": [{"page_content": "own chunk 1", "metadata": {"k": "v", "source": "evil"}}],
                       "ghost.txt": [{"page_content": "dropped"}]})  # fmt: skip
    assert api.upload("kb", {"a.txt": EN}, docs=docs)["data"]["failed_files"] == {}
    hits = api.search("kb", "own chunk", score_threshold=4)
    assert [hit["page_content"] for hit in hits] == ["own chunk 1"]
    assert hits[0]["metadata"]["k"] == "v"
    assert hits[0]["metadata"]["source"] == "a.txt"
    unchanged = api.post("/knowledge_base/update_docs", knowledge_base_name="kb", file_names=["a.txt"])
    assert unchanged["data"]["failed_files"] == {}
    assert api.texts("kb", "own chunk") == ["own chunk 1"]
    api.post("/knowledge_base/update_docs", knowledge_base_name="kb", file_names=["a.txt"], override_custom_docs=True)
    assert api.texts("kb", "harbour") == [EN]


def test_odd_json_is_stored_and_sent_back(api: Api) -> None:
    api.create("kb")
    chunk = r'{"page_content": "nul \u0000 half \ud800 valve A7", "metadata": {"n": NaN, "deep": [[{"x": null}]]}}'
    docs = f'{{"a.txt": [{chunk}]}}'
    assert api.upload("kb", {"a.txt": EN}, docs=docs)["data"]["failed_files"] == {}
    hit = api.search("kb", "", file_name="a.txt")[0]
    assert hit["page_content"] == "nul  half ? valve A7"
    assert hit["metadata"]["n"] is None
    assert hit["metadata"]["deep"] == [[{"x": None}]]
    body = rb'{"knowledge_base_name": "kb", "query": "\ud800 valve", "score_threshold": 4}'
    headers = {"content-type": "application/json"}
    assert api.http.post("/knowledge_base/search_docs", content=body, headers=headers).json()[0]["id"] == hit["id"]


def test_malformed_docs_are_explained(api: Api) -> None:
    api.create("kb")
    answer = api.upload("kb", {"a.txt": EN}, docs="[1")
    assert answer["code"] == 422
    assert "docs" in answer["msg"]


def test_one_chunk_is_edited_and_the_others_stay(api: Api) -> None:
    api.create("kb")
    api.upload("kb", {"a.txt": "first line\n\nsecond line"}, chunk_size=12, chunk_overlap=0)
    first, second = api.search("kb", "", file_name="a.txt")
    edit = {first["id"]: {"page_content": "edited 41", "type": "Document"}}
    answer = api.post("/knowledge_base/update_docs_by_id", knowledge_base_name="kb", docs=edit)
    assert answer == {"code": 200, "msg": "文档更新成功", "data": None}
    assert sorted(api.texts("kb", "line edited")) == ["edited 41", "second line"]
    assert api.search("kb", "edited", score_threshold=4)[0]["id"] == first["id"]
    api.post("/knowledge_base/update_docs_by_id", knowledge_base_name="kb", docs={second["id"]: None})
    assert api.texts("kb", "line edited") == ["edited 41"]
    unknown = api.post("/knowledge_base/update_docs_by_id", knowledge_base_name="kb", docs={"99999": None})
    assert unknown["code"] == 404
    missing = api.post("/knowledge_base/update_docs_by_id", knowledge_base_name="zzz", docs={"1": None})
    assert missing == {"code": 500, "msg": "指定的知识库 zzz 不存在", "data": None}


def test_deleting_a_file_is_exact(api: Api) -> None:
    api.create("kb")
    names = ["driver's guide.txt", 'say "hi".txt', "a%b_c.txt"]
    api.upload("kb", {name: f"body {n}" for n, name in enumerate(names)})
    answer = api.delete_docs("kb", names[0], "ghost.txt", delete_content=True)
    assert answer["msg"] == "文件删除完成"
    assert answer["data"]["failed_files"] == {"ghost.txt": "未找到文件 ghost.txt"}
    assert sorted(api.texts("kb", "body")) == ["body 1", "body 2"]
    api.delete_docs("kb", names[2])  # the bytes stay: a rebuild brings it back
    assert api.texts("kb", "body") == ["body 1"]
    assert [event["doc"] for event in api.recreate("kb")] == names[1:]
    assert sorted(api.texts("kb", "body")) == ["body 1", "body 2"]


def test_downloads(api: Api) -> None:
    api.create("kb")
    api.upload("kb", {"子/说明.txt": ZH, "page.html": "<p>hello there</p><script>alert(1)</script>"})
    query = {"knowledge_base_name": "kb", "file_name": "子/说明.txt"}
    response = api.http.get("/knowledge_base/download_doc", params=query)
    assert response.text == ZH
    assert response.headers["content-disposition"].startswith("attachment; filename*=utf-8''")
    assert response.headers["etag"]
    shown = api.http.get("/knowledge_base/download_doc", params={**query, "file_name": "page.html", "preview": "true"})
    assert shown.headers["content-disposition"].startswith("inline")
    assert "sandbox" in shown.headers["content-security-policy"]
    missing = api.http.get("/knowledge_base/download_doc", params={**query, "file_name": "ghost.txt"})
    assert missing.json()["code"] == 404


def test_the_description_can_be_changed(api: Api) -> None:
    api.create("kb")
    answer = api.post("/knowledge_base/update_info", knowledge_base_name="kb", kb_info="关于泵房 about pumps")
    assert answer == {"code": 200, "msg": "知识库介绍修改完成", "data": {"kb_info": "关于泵房 about pumps"}}
    details = api.http.get("/knowledge_base/list_knowledge_base_details").json()
    assert details[0]["kb_info"] == "关于泵房 about pumps"
    assert details[0]["file_count"] == 0


@pytest.mark.parametrize(("size", "overlap"), [(100, 100), (100, 150), (0, 0), (-1, 0), (50, -5)])
def test_impossible_sizes_name_the_field(api: Api, size: int, overlap: int) -> None:
    api.create("kb")
    answer = api.upload("kb", {"t.txt": "x" * 2000}, chunk_size=size, chunk_overlap=overlap)
    assert answer["code"] == 422
    assert "chunk_overlap" in answer["msg"]
    assert api.upload("kb", {"t.txt": "normal"})["data"]["failed_files"] == {}


def test_the_documentation_needs_no_internet(api: Api) -> None:
    for page in ("/docs", "/redoc"):
        html = api.http.get(page).text
        assert "https://" not in html.replace("https://fastapi", "")
        for asset in ("swagger-ui-bundle.js", "redoc.standalone.js"):
            if asset in html:
                assert api.http.get(f"/static-offline-docs/{asset}").status_code == 200
    assert api.http.get("/", follow_redirects=False).headers["location"] == "/docs"


def test_every_route_has_an_operation_id_and_words(api: Api) -> None:
    paths = api.http.get("/openapi.json").json()["paths"]
    operations = [operation for path in paths.values() for operation in path.values()]
    ids = [operation["operationId"] for operation in operations]
    assert len(set(ids)) == len(ids)
    assert all(operation.get("description") for operation in operations)
    assert all(name.replace("_", "").isalpha() for name in ids)


def test_a_manifest_tells_what_to_upload_and_what_to_delete(api: Api) -> None:
    api.create("kb")
    api.upload("kb", {"same.txt": "one", "changed.txt": "two", "mine/深.txt": "three", "empty.txt": ""})

    def item(name: str, text: str) -> dict[str, str]:
        return {"name": name, "sha256": hashlib.sha256(text.encode()).hexdigest().upper()}

    manifest = [item("same.txt", "one"), item("changed.txt", "2"), item("new.txt", "x"), item("empty.txt", ""),
                item("../x", "x")]  # fmt: skip
    found = api.post("/knowledge_base/diff_files", knowledge_base_name="kb", files=manifest)["data"]
    assert found["unchanged"] == ["same.txt"]
    assert found["upload"] == ["changed.txt", "new.txt", "empty.txt"]
    assert found["delete"] == ["mine/深.txt"]
    assert list(found["invalid"]) == ["../x"]
    assert api.post("/knowledge_base/diff_files", knowledge_base_name="ghost", files=[])["code"] == 404


def test_what_lies_in_the_folder_of_files_is_not_taken_for_one(api: Api, tmp_path: Path) -> None:
    api.create("kb")
    api.upload("kb", {"real.md": "real body 12"})
    (stored,) = (path for path in tmp_path.rglob("files/*/*") if path.is_file())
    junk = {".DS_Store": b"\1body", "~$real.docx": bytes(162), ".secret.md": b"secret body", "Thumbs.db": b"body"}
    for name, data in junk.items():
        (stored.parent / name).write_bytes(data)
    (stored.parent / "sub" / ".git").mkdir(parents=True)
    (stored.parent / "sub" / ".git" / "config").write_bytes(b"body")
    assert [(event["total"], event["doc"]) for event in api.recreate("kb")] == [(1, "real.md")]
    assert api.files("kb") == ["real.md"]
    assert api.texts("kb", "body") == ["real body 12"]


NULS: dict[str, bytes] = {
    "a.txt": b"Valve list\0 A7 is open.\0\nValve B2 is shut.\n",
    "a.md": b"# Valve\0 list\n\nA7 is open.\n\nValve B2\0 is shut.\n",
    "a.csv": b"valve,state of it\nA7\0,A7 is open\nB2,Valve B2 is shut\n",
    "a.json": b'{"A7\\u0000": "A7 is\\u0000 open", "list": ["Valve B2\\u0000 is shut"]}',
    "a.html": b"<title>Valve\0 list</title><p>A7 is open.</p><p>Valve B2 \0is shut.</p>",
    "a.eml": b"Subject: Valve\0 list\nTo: a@b.c\n\nA7 is open.\0\nValve B2 is shut.\n",
    "a.srt": b"1\n00:00:01,000 --> 00:00:02,000\nA7 is open\0\n\n2\n00:00:03,000 --> 00:00:04,000\nValve B2 is shut\n",
    "a.org": b"* Valve\0 list\nA7 is open.\n\nValve B2\0 is shut.\n",
    "a.rtf": rb"{\rtf1 A7 is\'00 open.\par Valve B2 is shut.\u0?}",
}


def test_no_nul_of_a_file_is_stored(api: Api) -> None:
    api.create("kb")
    assert api.upload("kb", NULS)["data"]["failed_files"] == {}
    found = api.search("kb", "Valve list", score_threshold=4, top_k=100)
    assert "\\u0000" not in json.dumps(found)
    for name in NULS:
        text = " ".join(hit["page_content"] for hit in found if hit["metadata"]["source"] == name)
        assert "A7 is open" in text, name
        assert "Valve B2" in text, name
