"""Passwords of files: what opens them is kept, works again after a rebuild, and is shown nowhere."""

from __future__ import annotations

import json
import logging

import pytest

from tests.conftest import Api
from tests.ingest.pdf_maker import make_pdf

KEY = "hunter2 密码"
PERMIT = make_pdf([["Permit 3307"]], password=KEY)


def given(**passwords: str) -> str:
    return json.dumps({f"{name}.pdf": password for name, password in passwords.items()})


def test_a_password_opens_a_file_also_when_it_is_rebuilt(api: Api) -> None:
    api.create("kb")
    found = api.upload("kb", {"a.pdf": PERMIT}, passwords=given(a=KEY))
    assert found["data"]["failed_files"] == {}
    api.events("/knowledge_base/recreate_vector_store", knowledge_base_name="kb")
    assert api.texts("kb", "Permit") == ["Permit 3307"]


def test_a_missing_password_says_how_to_give_it_and_update_docs_takes_it(api: Api) -> None:
    api.create("kb")
    failed = api.upload("kb", {"a.pdf": PERMIT})["data"]["failed_files"]
    assert "passwords" in failed["a.pdf"]
    body = {"knowledge_base_name": "kb", "file_names": ["a.pdf"]}
    failed = api.post("/knowledge_base/update_docs", **body, passwords={"a.pdf": "no"})["data"]["failed_files"]
    assert "密码不正确" in failed["a.pdf"]
    for passwords in ({"a.pdf": KEY}, given(a=KEY), {}):
        assert api.post("/knowledge_base/update_docs", **body, passwords=passwords)["data"]["failed_files"] == {}
    assert api.texts("kb", "Permit") == ["Permit 3307"]


def test_a_new_version_keeps_the_password_until_another_is_given(api: Api) -> None:
    api.create("kb")
    api.upload("kb", {"a.pdf": PERMIT}, passwords=given(a=KEY))
    newer = make_pdf([["Permit 3308"]], password=KEY)
    assert api.upload("kb", {"a.pdf": newer}, override=True)["data"]["failed_files"] == {}
    assert api.texts("kb", "Permit") == ["Permit 3308"]
    other = make_pdf([["Permit 3309"]], password="other")
    assert "a.pdf" in api.upload("kb", {"a.pdf": other}, override=True)["data"]["failed_files"]
    assert api.upload("kb", {"a.pdf": other}, passwords=given(a="other"))["data"]["failed_files"] == {}
    assert api.texts("kb", "Permit") == ["Permit 3309"]


def test_a_password_can_be_taken_back(api: Api) -> None:
    api.create("kb")
    api.upload("kb", {"a.pdf": PERMIT}, passwords=given(a=KEY))
    again = api.upload("kb", {"a.pdf": PERMIT}, override=True, passwords=given(a=""))
    assert "a.pdf" in again["data"]["failed_files"]


def test_temporary_files_may_have_passwords(api: Api) -> None:
    files = [("files", ("a.pdf", PERMIT))]
    answer = api.http.post("/knowledge_base/upload_temp_docs", files=files, data={"passwords": given(a=KEY)}).json()
    assert answer["data"]["failed_files"] == []


@pytest.mark.parametrize("passwords", [f'["{KEY}"]', f'{{"a.pdf": ["{KEY}"]}}', f'{{"a.pdf": {KEY}', "[" * 9999])
def test_passwords_that_are_none_are_refused_without_an_echo(api: Api, passwords: str) -> None:
    api.create("kb")
    answer = api.upload("kb", {"a.pdf": PERMIT}, passwords=passwords)
    assert answer["code"] == 422
    assert KEY not in str(answer)
    answer = api.http.post(
        "/knowledge_base/update_docs",
        json={"knowledge_base_name": "kb", "file_names": ["a.pdf"], "passwords": {"a.pdf": [KEY]}},
    )
    assert KEY not in answer.text


def test_a_password_is_shown_nowhere(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    api.create("kb")
    key = "hunter2"
    answers = [api.upload("kb", {"a.pdf": PERMIT, "b.txt": "Permit"}, passwords=given(a=key, b=key, c=key))]
    assert "密码不正确" in answers[0]["data"]["failed_files"]["a.pdf"]
    for path in ("list_files", "list_file_details", "list_knowledge_base_details"):
        answers.append(api.http.get(f"/knowledge_base/{path}", params={"knowledge_base_name": "kb"}).text)
    answers.append(api.http.get("/jobs").text)
    answers.append(api.http.get("/openapi.json").text)
    answers += api.search("kb", "Permit")
    assert "Permit" in str(answers[-1])
    assert key not in str(answers)
    assert key not in caplog.text
