"""Words and identifiers of Chinese and English can be found again, whatever they stand in."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.retrieval.analysis import LONGEST_TERM, MOST_QUERY_TERMS, language, query_terms, terms
from tests.conftest import grows_linearly


def finds(query: str, passage: str) -> bool:
    """Whether every meaningful term of the query is in the passage."""
    wanted = query_terms(query)
    return bool(wanted) and set(wanted) <= set(terms(passage))


@pytest.mark.parametrize(
    ("query", "passage"),
    [
        ("pump", "The pumps run all day."),
        ("connected", "It keeps twenty connections open."),
        ("scrooge", "Scrooge’s counting-house"),
        ("ＬＡＭＰ", "lamp 7"),
        ("finance", "the ﬁnance office"),
        ("潮汐", "海港的潮汐表每日更新"),
        ("压力表", "压力表校准每年一次"),
        ("荀彧", "曹操问荀彧与郭嘉"),
        ("郭嘉", "荀彧与郭嘉议祢衡之事"),
        ("数据库", "数据库连接池"),
        ("连接池", "数据库连接池"),
        ("API 密钥", "创建API密钥的方法"),
        ("カタカナ", "カタカナのテスト"),
        ("привет", "Привет, мир"),
        ("straße", "Die Straße"),
    ],
)
def test_words_are_found_in_their_passages(query: str, passage: str) -> None:
    assert finds(query, passage)


@pytest.mark.parametrize(
    "identifier",
    ["snake_case", "v1.2.3", "ERR-4012", "maxRetries", "__init__", "C++", "C#", "a.b.c:8080", "HTTP_TIMEOUT", "GPT-4"],
)
def test_an_identifier_stands_whole_in_any_text(identifier: str) -> None:
    assert identifier.lower() in terms(f"Set {identifier}, then restart.")
    assert identifier.lower() in terms(f"请设置{identifier}，然后重启。")
    assert identifier.lower() in query_terms(f"what is {identifier}?")


@pytest.mark.parametrize(
    ("part", "identifier"),
    [("retries", "maxRetries"), ("4012", "ERR-4012"), ("timeout", "HTTP_TIMEOUT"), ("server", "HTTPServer")],
)
def test_an_identifier_is_found_by_its_parts(part: str, identifier: str) -> None:
    assert finds(part, identifier)


def test_another_version_is_another_term() -> None:
    assert not finds("v1.2.3", "released as v1.2.4")


def test_terms_keep_order_and_repetitions() -> None:
    assert terms("lamp 7, lamp 8") == ["lamp", "7", "lamp", "8"]


def test_stop_words_stay_in_passages_and_leave_questions() -> None:
    assert "the" in terms("the tide")
    assert query_terms("the tide of the tide") == ["tide"]
    assert query_terms("这个港口的潮汐") == ["港口", "潮汐"]


@pytest.mark.parametrize(
    "text", ["你好", "谢谢", "你是谁", "hello", "how are you", "thanks, bye", "don't", "", "？！", "\x00"]
)
def test_a_question_of_common_words_has_no_terms(text: str) -> None:
    assert query_terms(text) == []


def test_a_pasted_page_is_cut() -> None:
    assert len(query_terms(" ".join(f"word{number}" for number in range(1000)))) == MOST_QUERY_TERMS


def test_data_is_not_a_word() -> None:
    assert max(map(len, terms("QUJD" * 5000 + " tide"))) == LONGEST_TERM
    assert terms("QUJD" * 5000 + " tide")[-1] == "tide"


@given(st.text(max_size=200))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_terms_survive_being_joined_by_spaces(text: str) -> None:
    found = terms(text)
    assert " ".join(found).split() == found
    assert terms(text) == found


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("海港的潮汐表", "zh"),
        ("使用 API 密钥创建应用", "zh"),
        ("The word 你好 means hello in Chinese and greets people", "en"),
        ("tide tables", "en"),
        ("Größe über alles", "en"),
        ("海の潮汐を調べる", "ja"),
        ("カタカナ", "ja"),
        ("안녕하세요", "ko"),
        ("Привет мир", "other"),
        ("مرحبا", "other"),
        ("12345 !?", "other"),
        ("", "other"),
    ],
)
def test_language_follows_the_script(text: str, code: str) -> None:
    assert language(text) == code


def test_time_grows_with_the_length_only() -> None:
    text = "The pump's bearings need oil; see ERR-4012. 数据库的连接池默认保留二十个连接，超过五分钟会被关闭。\n" * 500
    terms(text)
    assert grows_linearly(lambda times: terms(text * times))


def test_threads_agree() -> None:
    texts = [f"connection {number} of the 数据库连接池 in snake_case_{number}" for number in range(200)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(terms, texts)) == [terms(text) for text in texts]
