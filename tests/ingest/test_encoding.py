"""Bytes in any charset become the text that was written."""

from __future__ import annotations

import random

import pytest

from server.errors import DamagedFile
from server.ingest.loaders import large
from server.ingest.loaders.encoding import clean, decode

TEXTS = {
    "zh": "FAQ：如何登录 system？请先阅读说明书，再输入口令。",
    "tw": "您好，歡迎使用本系統。軟體安裝前請先關閉所有視窗。",
    "ja": "データベースに接続できません。もう一度お試しください。",
    "ko": "데이터베이스 연결에 실패했습니다. 다시 시도하세요.",
    "ru": "Не удалось подключиться к базе данных, попробуйте позже.",
    "de": "Die Größe der Fläche beträgt 5 m² – für 12 € (schön).",
    "ar": "لا يمكن الاتصال بقاعدة البيانات",
    "el": "Η σύνδεση με τη βάση δεδομένων απέτυχε.",
}
CASES = [
    *(
        ("zh", codec)
        for codec in ("utf-8", "utf-8-sig", "gbk", "gb18030", "utf-16", "utf-16-le", "utf-16-be", "utf-32")
    ),
    *(("tw", codec) for codec in ("big5", "utf-16-le")),
    *(("ja", codec) for codec in ("cp932", "euc_jp", "iso2022_jp")),
    ("ko", "cp949"),
    *(("ru", codec) for codec in ("koi8_r", "cp1251", "cp866")),
    ("de", "cp1252"),
    ("ar", "cp1256"),
    ("el", "cp1253"),
]


@pytest.mark.parametrize(("language", "codec"), CASES)
def test_text_is_read_in_the_charset_it_was_written_in(language: str, codec: str) -> None:
    assert decode(TEXTS[language].encode(codec)) == TEXTS[language]


@pytest.mark.parametrize("text", ["你好，世界", "姓名,年龄\n张三,20\n李四,30", "A-17 采购合同"])
def test_a_few_chinese_characters_are_enough(text: str) -> None:
    assert decode(text.encode("gbk")) == text


@pytest.mark.parametrize("text", ["25°C", "Café", "“quoted” – it’s", "Müller owes 12 €"])
def test_a_stray_accent_in_plain_text_is_western(text: str) -> None:
    padded = "plain words " * 5000 + text
    assert decode(padded.encode("cp1252")) == padded
    assert decode(text.encode("cp1252")) == text


def test_a_rare_character_at_the_end_counts_as_much_as_the_start() -> None:
    text = "第一回 宴桃园豪杰三结义。" * 20000 + "㐂田 𠮷"
    assert decode(text.encode("gb18030")) == text


def test_a_declared_charset_is_believed_only_when_the_bytes_agree() -> None:
    assert decode(TEXTS["zh"].encode("gbk"), "gb2312") == TEXTS["zh"]
    assert decode(TEXTS["zh"].encode("gbk"), "iso-8859-1") == TEXTS["zh"]
    assert decode(TEXTS["ar"].encode("cp1256"), "utf-8") == TEXTS["ar"]
    assert decode(TEXTS["ru"].encode("koi8_r"), "no-such-charset") == TEXTS["ru"]
    assert decode(TEXTS["de"].encode("cp1252"), "hex") == TEXTS["de"]


def test_a_few_broken_bytes_leave_the_file_utf8() -> None:
    data = bytearray(("人生若只如初见。" * 40).encode())
    data[100], data[500] = 0xFF, 0xFE
    text = decode(bytes(data))
    assert text.endswith("人生若只如初见。")
    assert 1 <= text.count("\ufffd") <= 6


def test_line_ends_and_dirt_are_normalised() -> None:
    assert decode("\ufeffa\r\nb\rc\x00d\x07 \x1b[31mred\x1b[0m\ufeff".encode()) == "a\nb\ncd red"
    assert clean("a\ud800b") == "a\\ud800b"


def test_a_few_nuls_do_not_make_utf16_of_utf8() -> None:
    text = "before\0the\0valve 阀门"
    assert decode(text.encode()) == text.replace("\0", "")
    assert decode(b"bo\0dy text") == "body text"
    assert decode("text\n".encode("utf-16-le")) == "text\n"


@pytest.mark.parametrize("size", [200, 5000, 50_000])
def test_random_bytes_are_refused(size: int) -> None:
    with pytest.raises(DamagedFile, match="not text"):
        decode(random.Random(size).randbytes(size))


def test_an_image_is_refused() -> None:
    with pytest.raises(DamagedFile, match="二进制"):
        decode(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4)


def test_nothing_is_nothing() -> None:
    assert decode(b"") == ""


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        ("第一行的潮位。\n\n" * 200 + "末尾 𠮷-7", "utf-8"),
        ("第一行的潮位，记录在案。\n" * 200 + "㐂田", "gb18030"),
        ("第一行\n" * 200, "utf-16"),
        ("plain words and nothing else\r\n" * 200 + "Café Müller owes 12 €", "cp1252"),
        ("одна строка обычного русского текста без разрывов " * 100, "koi8_r"),
        ("mostly ASCII " * 300 + "é", "utf-8"),
    ],
)
def test_large_texts_are_decoded_in_parts(text: str, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "LARGE", 100)
    monkeypatch.setattr(large, "_PART", 1001)
    data = text.encode(codec)
    parts = list(large.decode_parts(data))
    assert len(parts) > 2
    assert "".join(parts) == decode(data) == text.replace("\r\n", "\n")


def test_large_binary_data_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "LARGE", 100)
    with pytest.raises(DamagedFile):
        list(large.decode_parts(bytes(range(256)) * 50))
