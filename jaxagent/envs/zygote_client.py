"""The host's end of the zygote: start it once in a process, ask it for confined children, end them."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxagent.envs.confined import wire

_BOOT = (
    "import sys; sys.path.append({folder!r}); from confined import zygote; sys.path.pop(); "
    "zygote.main({fd}, {empty!r})"
)


class ZygoteError(Exception):
    """The zygote does not start or no longer answers."""


class Zygote:
    """Owner of one zygote process. Thread-safe: one request at a time."""

    def __init__(self, *, answer_s: float = 20.0):
        ours, theirs = socket.socketpair()
        ours.settimeout(answer_s)
        self._socket, self._lock, self._owner = ours, threading.Lock(), os.getpid()
        empty = tempfile.mkdtemp(prefix="jaxagent-empty-")
        boot = _BOOT.format(folder=str(Path(__file__).parent), fd=theirs.fileno(), empty=empty)
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-s", "-P", "-c", boot],
            env={"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"},  # no secret of ours; sets iterate the same way
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            cwd=empty,
            start_new_session=True,
        )
        theirs.close()
        try:
            ready = self._reply()
        except ZygoteError:
            self.close()
            raise
        finally:
            shutil.rmtree(empty, ignore_errors=True)
        if "ready" not in ready:
            self.close()
            raise ZygoteError(f"the zygote failed to start:\n{ready.get('failed')}")
        self.held: tuple[str, ...] = tuple(ready["ready"])

    def fork(self, options: Mapping[str, Any]) -> tuple[int, socket.socket]:
        """A confined child and the channel to it."""
        ours, theirs = socket.socketpair()
        try:
            with self._lock:
                try:
                    socket.send_fds(self._socket, [wire.frame({"fork": options})], [theirs.fileno()])
                except OSError as exc:
                    raise ZygoteError(f"the zygote is gone: {exc}") from exc
                reply = self._reply()
        finally:
            theirs.close()
        if "pid" not in reply:
            ours.close()
            raise ZygoteError(f"the zygote could not fork: {reply.get('failed')}")
        return reply["pid"], ours

    def end(self, pid: int) -> int:
        """Kill and reap a child; its wait status."""
        with self._lock:
            try:
                self._socket.sendall(wire.frame({"end": pid}))
            except OSError as exc:
                raise ZygoteError(f"the zygote is gone: {exc}") from exc
            return self._reply()["status"]

    def close(self) -> None:
        """End the zygote; its children die with it."""
        self._socket.close()
        if self._owner == os.getpid():  # a forked copy of this object does not own the process
            self._process.kill()
            self._process.wait()

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._owner == os.getpid() and self._socket.fileno() >= 0 and self._process.poll() is None

    def _reply(self) -> dict[str, Any]:
        try:
            header = self._exactly(wire.HEADER.size)
            return json.loads(self._exactly(wire.HEADER.unpack(header)[0]))
        except OSError as exc:
            raise ZygoteError(f"the zygote does not answer: {exc}") from exc

    def _exactly(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            part = self._socket.recv(size - len(parts))
            if not part:
                raise ZygoteError("the zygote closed its socket")
            parts += part
        return parts


_current: Zygote | None = None
_current_lock = threading.Lock()


def current_zygote() -> Zygote:
    """This process's zygote, started at the first call and again if it died."""
    global _current
    with _current_lock:
        if _current is None or not _current.alive:
            _current = Zygote()
            atexit.register(_current.close)
        return _current
