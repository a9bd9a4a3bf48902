"""Frames between a sandbox and its confined child: a 4-byte big-endian length, then JSON.

`read` is the child's side and trusts the host. The host never uses it: it reads with a deadline and a size
limit and validates every field (envs/sandbox.py).
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from typing import Any

HEADER = struct.Struct(">I")


def frame(message: Mapping[str, Any]) -> bytes:
    """One message as bytes. NaN and infinity are refused (ValueError), lone surrogates become escapes."""
    payload = json.dumps(message, allow_nan=False).encode()
    return HEADER.pack(len(payload)) + payload


def read(fd: int) -> dict[str, Any] | None:
    """The next message, or None at the end of the stream."""
    header = _exactly(fd, HEADER.size)
    if header is None:
        return None
    payload = _exactly(fd, HEADER.unpack(header)[0])
    return None if payload is None else json.loads(payload)


def write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _exactly(fd: int, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(fd, size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)
