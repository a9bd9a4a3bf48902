"""A worker process on this machine, spoken to over an inherited socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import Any

from jaxagent.envs.wire import MAX_ANSWER
from jaxagent.envs.worker import HEADER
from jaxagent.envs.worker_client import FRAME, Lost, parsed

_BOOT = "import sys; sys.path[:] = {path!r}; from jaxagent.envs import worker; worker.main({fd})"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class LocalProcess:
    """See worker_client.Process. It leads a process group of its own, which is killed as a whole."""

    def __init__(self) -> None:
        self.pid = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def start(self, seconds: float) -> None:
        ours, theirs = socket.socketpair()
        path = [entry or os.getcwd() for entry in sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT.format(path=path, fd=theirs.fileno())],
            env={**os.environ, **_ONE_THREAD},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        theirs.close()
        self.pid = self._process.pid
        self._streams = await asyncio.open_connection(sock=ours)
        await self.ask(b"", seconds)

    async def ask(self, request: bytes, seconds: float) -> dict[str, Any]:
        """Empty requests are not sent: the first answer of a worker comes unasked."""
        if self._streams is None:
            raise Lost("died", "it was killed")
        reader, writer = self._streams
        try:
            async with asyncio.timeout(seconds):
                if request:
                    writer.write(HEADER.pack(len(request)) + request)
                    await writer.drain()
                size = HEADER.unpack(await reader.readexactly(HEADER.size))[0]
                if size > MAX_ANSWER + FRAME:
                    raise Lost("garbage", f"an answer of {size} bytes")
                return parsed(await reader.readexactly(size))
        except TimeoutError:
            raise Lost("hang", f"no answer in {seconds:g} s") from None
        except (asyncio.IncompleteReadError, ConnectionError) as exc:
            raise Lost("died", self._obituary()) from exc

    def kill(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left in the group
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _obituary(self) -> str:
        if self._process is None:
            return "it was killed"
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "it closed its socket"
        return f"killed by signal {-code}" if code < 0 else f"it ended with exit code {code}"
