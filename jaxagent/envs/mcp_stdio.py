"""An MCP server as a child process that speaks JSON lines through its stdin and stdout.

The server and whatever it starts (npx and uvx start the real one) form a process group that ends with the episode, and
with this process however that dies: a watcher process kills the groups that are left when its pipe to us closes.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from jaxagent.envs.http_client import as_object
from jaxagent.envs.mcp_client import result_of
from jaxagent.errors import EnvFailure

MAX_MESSAGE = 16 << 20
SHOWN_CHARS = 1000  # of what a server wrote to stderr, in an error message
UNKNOWN_METHOD = {"code": -32601, "message": "this client offers nothing to servers"}
_BOUND = (  # the server dies with its worker at once on Linux, before the watcher knows of it
    "import ctypes, os, sys\n"
    "if sys.platform == 'linux': ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)\n"
    "if os.getppid() == int(sys.argv[1]): os.execvp(sys.argv[2], sys.argv[2:])"  # else it has died meanwhile
)
_WATCH = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


class _Watcher:
    """Owner of the watcher process. `tell` adds or drops a process group."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _WATCH],
            stdin=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self.owner = os.getpid()

    def tell(self, sign: str, group: int) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # somebody killed it: what is left is the parent-death signal
            self._process.stdin.write(f"{sign}{group}\n".encode())

    def close(self) -> None:
        if self.owner == os.getpid() and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()


_watchers: list[_Watcher] = []  # of this process: one, made at the first server


def _watcher() -> _Watcher:
    if not _watchers or _watchers[0].owner != os.getpid():
        _watchers[:] = [_Watcher()]
        atexit.register(_watchers[0].close)
    return _watchers[0]


class StdioServer:
    """Owner of a server process. seconds: of one request. quoted: failures end with what it wrote to stderr.

    That goes to a file without bounds, so it is for a short first try.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        seconds: float,
        env: Mapping[str, str],
        quoted: bool = False,
    ):
        self._seconds, self._ids, self._buffer = seconds, itertools.count(1), b""
        self._stderr = tempfile.TemporaryFile() if quoted else None  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _BOUND, str(os.getpid()), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr or subprocess.DEVNULL,
            bufsize=0,
            env={**os.environ, **env},
            start_new_session=True,
        )
        _watcher().tell("+", self._process.pid)
        assert self._process.stdin is not None
        # A server that does not read must not hold us up.
        os.set_blocking(self._process.stdin.fileno(), False)

    def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        number, end = next(self._ids), time.monotonic() + self._seconds
        self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params)}, method, end)
        while True:
            message = self._receive(method, end)
            if "method" in message:
                self._reply(message, end)
            elif message.get("id") == number:
                return result_of(message, method)

    def notify(self, method: str) -> None:
        self._send({"jsonrpc": "2.0", "method": method}, method, time.monotonic() + self._seconds)

    def close(self) -> None:
        """End the server and what it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        _watcher().tell("-", self._process.pid)
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            if pipe is not None:
                pipe.close()

    def _reply(self, message: Mapping[str, Any], end: float) -> None:
        """A server may ask for a sign of life; notifications (logs, progress) are not answered."""
        if "id" in message:
            answer = {"result": {}} if message["method"] == "ping" else {"error": UNKNOWN_METHOD}
            self._send({"jsonrpc": "2.0", "id": message["id"], **answer}, str(message["method"]), end)

    def _send(self, message: Mapping[str, Any], method: str, end: float) -> None:
        assert self._process.stdin is not None
        left = memoryview(json.dumps(message).encode() + b"\n")
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdin, selectors.EVENT_WRITE)
            while left:
                if not selector.select(max(end - time.monotonic(), 0)):
                    raise EnvFailure(
                        "hang",
                        f"{method}: the MCP server reads nothing for {self._seconds:g} s{self._said()}",
                    )
                try:
                    left = left[os.write(self._process.stdin.fileno(), left) :]
                except BlockingIOError:
                    continue
                except OSError as exc:
                    raise EnvFailure("died", f"the MCP server closed its stdin{self._exit()}") from exc

    def _receive(self, method: str, end: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(end - time.monotonic(), 0)):
                    raise EnvFailure("hang", f"{method}: no answer in {self._seconds:g} s{self._said()}")
                part = os.read(self._process.stdout.fileno(), 1 << 16)
                if not part:
                    raise EnvFailure("died", f"{method}: the MCP server closed its stdout{self._exit()}")
                self._buffer += part
                if len(self._buffer) > MAX_MESSAGE:
                    raise EnvFailure("garbage", f"{method}: a message of more than {MAX_MESSAGE} bytes")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return as_object(line, method)

    def _exit(self) -> str:
        try:
            return f"; it ended with exit code {self._process.wait(1.0)}{self._said()}"
        except subprocess.TimeoutExpired:
            return self._said()

    def _said(self) -> str:
        """The end of its stderr, where that is kept."""
        if self._stderr is None:
            return ""
        size = os.fstat(self._stderr.fileno()).st_size
        text = os.pread(self._stderr.fileno(), SHOWN_CHARS, max(size - SHOWN_CHARS, 0))
        return f"; its stderr ends: {text.decode(errors='replace').strip()}" if text.strip() else ""
