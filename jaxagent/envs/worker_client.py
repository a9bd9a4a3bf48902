"""The pool's end of one worker process: start, one exchange at a time, kill and replace."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from typing import Any

from jaxagent.envs.wire import MAX_ANSWER
from jaxagent.envs.worker import HEADER

FRAME = 1 << 10  # bytes around an answer's record
_BOOT = "import sys; sys.path[:] = {path!r}; from jaxagent.envs import worker; worker.main({fd})"


class Lost(Exception):
    """The worker is gone, and with it all its environments. kind: "hang" | "died" | "garbage"."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


class Worker:
    """Owner of one worker process. `generation` counts its processes: environments live in exactly one."""

    def __init__(self, start_s: float, counts: Counter[str]):
        self.load = 0
        self.generation = 0
        self._start_s, self._counts = start_s, counts
        self._lock = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._last_loss = ""

    async def exchange(
        self, request: bytes, seconds: float, generation: list[int]
    ) -> tuple[dict[str, Any], float]:
        """Send a request, await its answer for at most `seconds`; (answer, seconds taken).

        An empty `generation` is filled with the process that serves the request (an opening call); a full one
        that names an older process raises Lost.
        """
        async with self._lock:
            if generation and generation[0] != self.generation:
                raise Lost("died", f"its worker was replaced: {self._last_loss}")
            if self._process is None:
                await self._start()
            if not generation:
                generation.append(self.generation)
            start = time.monotonic()
            answer = await self._ask(request, seconds)
            return answer, time.monotonic() - start

    async def close(self) -> None:
        async with self._lock:
            self._kill()

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        path = [entry or os.getcwd() for entry in sys.path]
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT.format(path=path, fd=theirs.fileno())],
            env={**os.environ, **threads},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        theirs.close()
        self.generation += 1
        self._streams = await asyncio.open_connection(sock=ours)
        await self._ask(None, self._start_s)

    async def _ask(self, request: bytes | None, seconds: float) -> dict[str, Any]:
        assert self._streams is not None
        reader, writer = self._streams
        try:
            async with asyncio.timeout(seconds):
                if request is not None:
                    writer.write(HEADER.pack(len(request)) + request)
                    await writer.drain()
                size = HEADER.unpack(await reader.readexactly(HEADER.size))[0]
                if size > MAX_ANSWER + FRAME:
                    raise ValueError(f"an answer of {size} bytes")
                answer = json.loads(await reader.readexactly(size))
            if not isinstance(answer, dict) or not ({"ok", "failed"} & set(answer)):
                raise ValueError("an answer that is neither ok nor failed")
            return answer
        except TimeoutError:
            raise self._lose("hang", f"no answer in {seconds:g} s") from None
        except (asyncio.IncompleteReadError, ConnectionError) as exc:
            raise self._lose("died", self._obituary()) from exc
        except (ValueError, RecursionError) as exc:
            raise self._lose("garbage", str(exc)) from exc
        except (
            asyncio.CancelledError
        ):  # the pool is being torn down in mid-exchange: the stream is out of step
            self._lose("died", "the exchange was cancelled")
            raise

    def _obituary(self) -> str:
        assert self._process is not None
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "it closed its socket"
        return f"killed by signal {-code}" if code < 0 else f"it ended with exit code {code}"

    def _lose(self, kind: str, message: str) -> Lost:
        self._kill()
        self._counts["restarts"] += 1
        self._last_loss = f"{kind}: {message}"
        return Lost(kind, message)

    def _kill(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self.generation += 1  # handles of the dead process are stale from now on
