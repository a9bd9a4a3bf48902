"""One environment worker: hosts many Env instances and answers one request at a time.

Started by local_process.py with one inherited socket; ray_pool.py has the same table in an actor. Requests are
pickled tuples `(operation, env id, argument)`, answers are JSON objects: {"ok": record} or {"failed": kind,
"message": text}. Never imports jax.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pickle
import resource
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from jaxagent.envs.protocol import Env, Snapshots
from jaxagent.envs.replay import Prefix, open_at
from jaxagent.envs.wire import encode, encode_state
from jaxagent.errors import EnvFailure
from jaxagent.types import Action, Task

HEADER = struct.Struct(">Q")
_PR_SET_PDEATHSIG = 1


class EnvTable:
    """The live environments of a process, by number. Every fault of an environment is an EnvFailure."""

    def __init__(self) -> None:
        self._envs: dict[int, Env] = {}
        self.start_bytes = _memory()[0]

    def open(
        self, number: int, make: Callable[[], Env], task: Task, prefix: Prefix | None = None
    ) -> dict[str, Any]:
        """Reset, or go to the end of a prefix; the result from which the episode goes on."""
        with _failing_as("reset"):
            return encode(open_at(make, task, prefix, keep=partial(self._envs.__setitem__, number)))

    def step(self, number: int, action: Action) -> dict[str, Any]:
        with _failing_as("raised"):
            return encode(self._env(number).step(action))

    def evaluate(self, number: int) -> dict[str, Any]:
        with _failing_as("raised"):
            return encode(self._env(number).evaluate())

    def snapshot(self, number: int) -> dict[str, Any]:
        env = self._env(number)
        with _failing_as("raised"):
            return encode_state(env.snapshot() if isinstance(env, Snapshots) else None)

    def close(self, number: int) -> dict[str, Any]:
        env = self._envs.pop(number, None)
        if env is not None:
            with _failing_as("raised"):
                env.close()
        return {"record": "none"}

    def _env(self, number: int) -> Env:
        if number not in self._envs:
            raise EnvFailure("raised", f"environment {number} is not open in this worker")
        return self._envs[number]


@contextlib.contextmanager
def _failing_as(kind: str):
    try:
        yield
    except EnvFailure:
        raise
    except Exception as exc:
        raise EnvFailure(kind, "".join(traceback.format_exception(exc, limit=-20)).strip()[-4000:]) from exc


def main(fd: int) -> None:
    """Serve until the pool's end of the socket closes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    channel, table = socket.socket(fileno=fd), EnvTable()
    _send(channel, {"ok": {"record": "none"}, "pid": os.getpid()})
    while (data := _receive(channel)) is not None:
        _send(channel, answer(table, data))


def answer(table: EnvTable, request: bytes) -> dict[str, Any]:
    """One request's answer, whatever the environment does short of ending the process."""
    try:
        return {"ok": _serve(table, *pickle.loads(request))}
    except EnvFailure as exc:
        return {"failed": exc.kind, "message": str(exc)}
    except Exception as exc:  # it could not be unpickled: a factory that this process cannot import
        return {"failed": "reset", "message": f"{type(exc).__name__}: {exc}"}


def _serve(table: EnvTable, operation: str, number: int, argument: Any) -> dict[str, Any]:
    if operation == "open":
        make, task, prefix, memory_gb = argument
        if memory_gb:
            _limit_memory(memory_gb, table.start_bytes)
        return table.open(number, make, task, prefix)
    if operation == "step":
        return table.step(number, argument)
    if operation == "evaluate":
        return table.evaluate(number)
    if operation == "snapshot":
        return table.snapshot(number)
    return {**table.close(number), "resident": _memory()[1]}


def _limit_memory(gigabytes: float, start: int) -> None:
    """Address space of this worker beyond what it started with (a Ray worker maps gigabytes of shared memory).

    More than that is a MemoryError in the environment that asked for it.
    """
    with contextlib.suppress(ValueError, OSError):  # macOS refuses RLIMIT_AS
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (start + int(gigabytes * 2**30), hard))


def _memory() -> tuple[int, int]:
    """Address space and resident set of this process in bytes; outside Linux (0, the largest resident set so far)."""
    try:
        pages = Path("/proc/self/statm").read_text().split()
    except OSError:
        return 0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(pages[0]) * resource.getpagesize(), int(pages[1]) * resource.getpagesize()


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    payload = json.dumps(message).encode()
    channel.sendall(HEADER.pack(len(payload)) + payload)


def _receive(channel: socket.socket) -> bytes | None:
    header = _exactly(channel, HEADER.size)
    return None if header is None else _exactly(channel, HEADER.unpack(header)[0])


def _exactly(channel: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = channel.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)
