"""Groups of finished episodes as compact bytes, and back to equal records: every field, every dtype.

A record is JSON for the structure, and one column of raw bytes a dtype for the arrays, compressed together. Fields are
written by name, so that a record which has gained a field with a default still reads what was written before. An
array whose bytes are already in the column points there: a step's ids lie inside its segment's.

    (np.array([7, 8], int32), "a")  ->  {"()": [{"a": ["int32", [2], 0]}, "a"]}    int32: 07 00 00 00 08 00 00 00
"""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from jaxagent.errors import DataError
from jaxagent.types import (
    Action,
    Credited,
    Dropped,
    Evaluation,
    ExecStatus,
    Group,
    Message,
    Prompt,
    Segment,
    Status,
    Step,
    StepResult,
    Stop,
    Task,
    ToolCall,
    Trajectory,
)

RECORDS: Mapping[str, type] = {
    kind.__name__: kind
    for kind in (
        Action,
        Credited,
        Dropped,
        Evaluation,
        Group,
        Message,
        Prompt,
        Segment,
        Step,
        StepResult,
        Task,
        ToolCall,
        Trajectory,
    )
}
ENUMS: Mapping[str, type[Enum]] = {kind.__name__: kind for kind in (ExecStatus, Status, Stop)}
LONG = 24  # characters from which on a repeated text is stored once


def encode(value: Any) -> bytes:
    """One record (or a tuple of them) as bytes. Raises DataError, naming the field, for what cannot be stored."""
    writer = _Writer()
    tree = writer.tree(value, type(value).__name__)
    head = {
        "tree": tree,
        "texts": list(writer.texts),
        "columns": {k: len(v) for k, v in writer.columns.items()},
    }
    text = json.dumps(head, separators=(",", ":")).encode()
    return zlib.compress(struct.pack("<I", len(text)) + text + b"".join(writer.columns.values()), 6)


def decode(data: bytes) -> Any:
    """What `encode` was given. Raises DataError if the bytes are damaged, or of a later version."""
    try:
        raw = zlib.decompress(data)
        (size,) = struct.unpack_from("<I", raw)
        head = json.loads(raw[4 : 4 + size])
        columns, start = {}, 4 + size
        for dtype, length in head["columns"].items():
            columns[dtype] = memoryview(raw)[start : start + length]
            start += length
        return _Reader(columns, head["texts"]).value(head["tree"])
    except (zlib.error, struct.error, ValueError, KeyError, IndexError, TypeError) as error:
        raise DataError(f"a stored rollout cannot be read ({type(error).__name__}: {error})") from error


class _Writer:
    """Collects texts and array bytes while the structure is walked."""

    def __init__(self) -> None:
        self.columns: dict[str, bytearray] = {}
        self.texts: dict[str, int] = {}

    def tree(self, value: Any, where: str) -> Any:
        """The structure as JSON. Whatever is no plain JSON scalar is an object with one tag."""
        if isinstance(value, Enum) and ENUMS.get(type(value).__name__) is type(value):
            return {"e": [type(value).__name__, value.value]}
        if value is None or type(value) in (bool, int, float):
            return value
        if type(value) is str:
            return value if len(value) < LONG else {"s": self.texts.setdefault(value, len(self.texts))}
        if isinstance(value, (np.ndarray, np.generic)):
            return {"a": self._array(np.asarray(value), where)}
        if isinstance(value, (tuple, list)):
            tag = "()" if isinstance(value, tuple) else "[]"
            return {tag: [self.tree(item, f"{where}[{i}]") for i, item in enumerate(value)]}
        if isinstance(value, Mapping):
            pairs = (
                (self.tree(key, where), self.tree(item, f"{where}[{key!r}]")) for key, item in value.items()
            )
            return {"{}": [list(pair) for pair in pairs]}
        if type(value).__name__ in RECORDS and type(value) is RECORDS[type(value).__name__]:
            fields = {f.name: self.tree(getattr(value, f.name), f"{where}.{f.name}") for f in _fields(value)}
            return {"r": [type(value).__name__, fields]}
        raise DataError(
            f"{where} is a {type(value).__name__}, which a store of rollouts cannot hold; expected numbers, texts, "
            "arrays, tuples, lists, mappings or the records of types.py"
        )

    def _array(self, array: np.ndarray, where: str) -> list[Any]:
        """[dtype, shape, offset into the dtype's column]."""
        if array.dtype.kind not in "biuf":
            raise DataError(
                f"{where} is an array of {array.dtype}; a store of rollouts holds numbers and booleans"
            )
        name, data = array.dtype.name, array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        column = self.columns.setdefault(name, bytearray())
        offset = column.find(data)
        if offset < 0 or offset % array.itemsize:
            offset = len(column)
            column += data
        return [name, list(array.shape), offset]


def _fields(record: Any) -> Iterator[dataclasses.Field[Any]]:
    """Segments first: the tokens of the steps are then found inside them."""
    return iter(sorted(dataclasses.fields(record), key=lambda field: field.name != "segments"))


@dataclasses.dataclass(frozen=True)
class _Reader:
    columns: Mapping[str, memoryview]
    texts: Sequence[str]

    def value(self, tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        ((tag, content),) = tree.items()
        if tag == "s":
            return self.texts[content]
        if tag == "a":
            return self._array(*content)
        if tag == "e":
            return ENUMS[content[0]](content[1])
        if tag == "r":
            return RECORDS[content[0]](**{name: self.value(item) for name, item in content[1].items()})
        if tag == "{}":
            return {self.value(key): self.value(item) for key, item in content}
        items = [self.value(item) for item in content]
        return tuple(items) if tag == "()" else items

    def _array(self, dtype: str, shape: list[int], offset: int) -> Any:
        kind, count = np.dtype(dtype), int(np.prod(shape, dtype=np.int64))
        data = self.columns[dtype][offset : offset + count * kind.itemsize]
        array = np.frombuffer(data, kind.newbyteorder("<")).astype(kind).reshape(shape)
        return array if shape else array[()]  # a NumPy number stays one
