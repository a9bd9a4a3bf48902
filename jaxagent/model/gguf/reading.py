"""The GGUF container (llama.cpp's weight file): bytes -> metadata and float32 arrays. numpy only.

In: a path. Out: `GGUF`, with plain Python metadata and one lazy, memory-mapped record a tensor. Which tensor
means what is not known here (weights.py), nor what the tokenizer's fields mean (tokenizer.py).

Layout, little endian (ggml docs/gguf.md, versions 2 and 3):

    "GGUF" version:u32 tensors:u64 entries:u64
    entries x  (key:string type:u32 value)      string = length:u64 bytes; array = type:u32 length:u64 items
    tensors x  (name:string rank:u32 dims:u64[rank] type:u32 offset:u64)      dims: fastest axis first
    padding to `general.alignment` (32), then the data that the offsets count from
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from jaxagent.errors import DataError

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


def dequantise_q4_1(blocks: UInt8[np.ndarray, "n 20"]) -> Float[np.ndarray, "n 32"]:
    """Blocks of 32: scale f16, minimum f16, 16 bytes; value = scale * q + minimum, q in 0..15.

    The low half of byte i is value i, the high half value i + 16.
    """
    scale, minimum = np.split(blocks[:, :4].copy().view(np.float16).astype(np.float32), 2, axis=1)
    packed = blocks[:, 4:]
    return scale * np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32) + minimum


def dequantise_q8_0(blocks: UInt8[np.ndarray, "n 34"]) -> Float[np.ndarray, "n 32"]:
    """Blocks of 32: scale f16, 32 signed bytes; value = scale * q."""
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    return scale * blocks[:, 2:].copy().view(np.int8).astype(np.float32)


@dataclass(frozen=True)
class Encoding:
    """How a type stores numbers. values, size (bytes): of a block; decode: [n, size] to [n, values]."""

    name: str
    values: int
    size: int
    decode: Callable[[np.ndarray], np.ndarray]


ENCODINGS = {
    0: Encoding("F32", 1, 4, lambda blocks: blocks.view(np.float32)),
    1: Encoding("F16", 1, 2, lambda blocks: blocks.view(np.float16).astype(np.float32)),
    3: Encoding("Q4_1", 32, 20, dequantise_q4_1),
    8: Encoding("Q8_0", 32, 34, dequantise_q8_0),
}


@dataclass(frozen=True, eq=False)
class Stored:
    """One tensor of the file. `shape` is in row-major order (the file's dims reversed)."""

    name: str
    shape: tuple[int, ...]
    encoding: Encoding
    data: UInt8[np.ndarray, " bytes"]

    def array(self) -> Float[np.ndarray, "..."]:
        """The numbers, as float32."""
        return self.encoding.decode(self.data.reshape(-1, self.encoding.size)).reshape(self.shape)


@dataclass(frozen=True, eq=False)
class GGUF:
    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Stored]

    def get(self, key: str) -> Any:
        """A metadata value that must be there."""
        if key not in self.metadata:
            raise DataError(f"{self.path}: no metadata {key!r}; this file cannot be converted without it")
        return self.metadata[key]


class _Cursor:
    """Reads values from a buffer, front to back."""

    def __init__(self, data: np.ndarray):
        self.data = data.data
        self.at = 0

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize(code)
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        if length > len(self.data) - self.at:
            raise ValueError(f"a string of {length} bytes at byte {self.at}")
        start, self.at = self.at, self.at + length
        return bytes(self.data[start : self.at]).decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            item, length = self.scalar("I"), self.scalar("Q")
            if length > len(self.data) - self.at:
                raise ValueError(f"an array of {length} items at byte {self.at}")
            return [self.value(item) for _ in range(length)]
        if kind not in SCALARS:
            raise ValueError(f"metadata type {kind} at byte {self.at}")
        return self.scalar(SCALARS[kind])


def read_gguf(path: str | Path) -> GGUF:
    """Open a file. Tensors stay on disk (memory-mapped) until `Stored.array` is called."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file; give the path of a .gguf file")
    if path.stat().st_size < 24:
        raise DataError(f"{path}: {path.stat().st_size} bytes, too short for a GGUF file; fetch it again")
    data = np.memmap(path, np.uint8, mode="r")
    cursor = _Cursor(data)
    if bytes(data[:4]) != b"GGUF":
        raise DataError(f"{path}: starts with {bytes(data[:4])!r}, not b'GGUF'; this is no GGUF file")
    cursor.at = 4
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise DataError(
            f"{path}: GGUF version {version}; little-endian versions 2 and 3 are read, convert it anew"
        )
    try:
        return _read_body(path, data, cursor)
    except (struct.error, ValueError) as error:
        raise DataError(f"{path}: damaged or cut short ({error}); fetch it again") from error


def _read_body(path: Path, data: np.ndarray, cursor: _Cursor) -> GGUF:
    tensors, entries = cursor.scalar("Q"), cursor.scalar("Q")
    metadata: dict[str, Any] = {}
    for _ in range(entries):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("I"))
    infos = []
    for _ in range(tensors):
        name = cursor.string()
        dims = [cursor.scalar("Q") for _ in range(cursor.scalar("I"))]
        infos.append((name, tuple(reversed(dims)), cursor.scalar("I"), cursor.scalar("Q")))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"general.alignment is {alignment!r}")
    start = -(-cursor.at // alignment) * alignment
    stored = {name: _locate(path, data[start:], name, *info) for name, *info in infos}
    return GGUF(path, metadata, stored)


def _locate(
    path: Path, data: np.ndarray, name: str, shape: tuple[int, ...], kind: int, offset: int
) -> Stored:
    if kind not in ENCODINGS:
        known = ", ".join(encoding.name for encoding in ENCODINGS.values())
        raise DataError(
            f"{path}: tensor {name} has ggml type {kind}; {known} are read, take a file quantised so"
        )
    encoding = ENCODINGS[kind]
    if shape and shape[-1] % encoding.values:
        raise ValueError(f"tensor {name}: rows of {shape[-1]} in {encoding.name} blocks of {encoding.values}")
    size = math.prod(shape) // encoding.values * encoding.size
    if offset + size > len(data):
        raise ValueError(f"tensor {name} needs {offset + size} bytes of data, {len(data)} are there")
    return Stored(name, shape, encoding, data[offset : offset + size])
