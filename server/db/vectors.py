"""Vectors and hashes as they are stored."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]


def pack(vector: FloatArray) -> bytes:
    """A raw embedding as little-endian float16: half the bytes, cosines stay within 1e-3."""
    return np.asarray(vector, dtype="<f2").tobytes()


def unpack(blobs: Sequence[bytes]) -> FloatArray:
    """Stored vectors of one length as float32 of shape (n, d)."""
    return np.frombuffer(b"".join(blobs), dtype="<f2").reshape(len(blobs), -1).astype(np.float32)


def text_hash(text: str) -> bytes:
    """Twelve bytes that tell equal texts: the key under which an embedding is found again."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).digest()
