"""The host's end of the pipe to a confined child, which may hang, die or forge: deadlines, sizes, valid JSON.

What comes out of `receive` is a JSON object and nothing more; its fields are for the caller to check.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from typing import Any

from jaxagent.envs.confined import wire


class ChildGone(Exception):
    """The child hung, died or broke the protocol; `kind` is "hung", "died" or "forged"."""

    def __init__(self, kind: str, why: str):
        super().__init__(why)
        self.kind = kind


class Channel:
    """Owner of one socket. Deadlines are values of time.monotonic(); `largest` bounds a received message."""

    def __init__(self, end: socket.socket, *, largest: int):
        self._socket, self._largest = end, largest

    def close(self) -> None:
        self._socket.close()

    def send(self, message: Mapping[str, Any], deadline: float) -> None:
        try:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            self._socket.sendall(wire.frame(message))
        except TimeoutError as exc:
            raise ChildGone("hung", "it does not read") from exc
        except OSError as exc:
            raise ChildGone("died", "its pipe is closed") from exc

    def receive(self, deadline: float) -> dict[str, Any]:
        size = wire.HEADER.unpack(self._exactly(wire.HEADER.size, deadline))[0]
        if size > self._largest:
            raise ChildGone("forged", f"a message of {size} bytes")
        payload = self._exactly(size, deadline)
        try:
            message = json.loads(payload, parse_constant=_refuse_constant)
            if b"\\ud" in payload.lower():  # perhaps a lone surrogate; nothing further on could encode it
                message = json.loads(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace"))
        except (ValueError, RecursionError) as exc:  # bad UTF-8 and overlong integers are ValueErrors too
            raise ChildGone("forged", "a message that is not JSON") from exc
        if not isinstance(message, dict):
            raise ChildGone("forged", "a message that is not an object")
        return message

    def _exactly(self, size: int, deadline: float) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ChildGone("hung", "no answer in time")
            self._socket.settimeout(left)
            try:
                part = self._socket.recv(min(size - len(parts), 1 << 20))
            except TimeoutError as exc:
                raise ChildGone("hung", "no answer in time") from exc
            except OSError as exc:
                raise ChildGone("died", "its pipe is closed") from exc
            if not part:
                raise ChildGone("died", "its pipe is closed")
            parts += part
        return bytes(parts)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
