"""The pool's end of one worker: its process, one exchange at a time, killed and replaced.

A `Process` starts, serves requests and is killed; local_process.py and ray_pool.py are the two kinds. `Worker` owns
one at a time and does what both need: order, generations, counts, wear.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from jaxagent.envs.limits import Wear
from jaxagent.envs.wire import MAX_ANSWER

FRAME = 1 << 10  # bytes around an answer's record


class Lost(Exception):
    """The worker is gone, and with it all its environments. kind: "hang" | "died" | "garbage" of
    the call that it was lost in, "evicted" for the other episodes that it hosted.
    """

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


class Process(Protocol):
    """One process with an EnvTable (worker.py). Its methods raise Lost; then it is killed and never used again."""

    pid: int

    async def start(self, seconds: float) -> None: ...

    async def ask(self, request: bytes, seconds: float) -> dict[str, Any]: ...

    def kill(self) -> None:
        """End it and what it started. May be called in any state, during an `ask` too."""
        ...


class Worker:
    """Owner of one worker process. `generation` counts its processes: environments live in exactly one.

    load: open episodes, kept by the pool. worn: takes no new episodes and is replaced when the last one ends.
    """

    def __init__(self, launch: Callable[[], Process], start_s: float, counts: Counter[str]):
        self.load = 0
        self.generation = 0
        self.worn = False
        self._launch, self._start_s, self._counts = launch, start_s, counts
        self._lock = asyncio.Lock()
        self._process: Process | None = None
        self._closed = False
        self._last_loss = ""
        self._served = self._first_bytes = 0

    @property
    def pid(self) -> int:
        """Of the running process; 0 if there is none."""
        return self._process.pid if self._process else 0

    async def exchange(
        self, request: bytes, seconds: float, generation: list[int]
    ) -> tuple[dict[str, Any], float]:
        """Send a request, await its answer for at most `seconds`; (answer, seconds taken).

        An empty `generation` is filled with the process that serves the request (an opening call); a full one
        that names an older process raises Lost.
        """
        async with self._lock:
            if generation and generation[0] != self.generation:
                raise Lost("evicted", f"its worker was replaced: {self._last_loss}")
            try:
                process = self._process or await self._start()
                if not generation:
                    generation.append(self.generation)
                start = time.monotonic()
                return await process.ask(request, seconds), time.monotonic() - start
            except Lost as lost:
                self._lose(f"{lost.kind}: {lost}")
                raise
            except (
                asyncio.CancelledError
            ):  # the pool is torn down in mid-exchange: the process is out of step
                self._lose("died: the exchange was cancelled")
                raise

    def ended(self, wear: Wear, resident: int) -> None:
        """An episode was closed; `resident` bytes are in use."""
        self._served += 1
        self._first_bytes = self._first_bytes or resident
        self.worn = self.worn or wear.is_over(self._served, self._first_bytes, resident)

    async def replace(self) -> None:
        """End a worn process; the next exchange starts a fresh one."""
        async with self._lock:
            self._counts["recycled"] += 1
            self._last_loss = "it was worn"
            self._end()

    async def close(self) -> None:
        """End it for good. An exchange that is going on is lost: nobody waits for a hanging environment."""
        self._closed = True
        if self._process is not None:
            self._process.kill()
        async with self._lock:
            self._end()

    async def _start(self) -> Process:
        if self._closed:
            raise Lost("died", "the pool is closed")
        self._process = self._launch()
        self.generation += 1
        await self._process.start(self._start_s)
        return self._process

    def _lose(self, why: str) -> None:
        self._counts["restarts"] += not self._closed
        self._last_loss = why
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None
            self.generation += 1  # handles of the dead process are stale from now on
        self._served, self._first_bytes, self.worn = 0, 0, False


def parsed(data: bytes) -> dict[str, Any]:
    """A worker's answer. Raises Lost("garbage")."""
    try:
        if len(data) > MAX_ANSWER + FRAME:
            raise ValueError(f"an answer of {len(data)} bytes")
        answer = json.loads(data)
        if not isinstance(answer, dict) or not ({"ok", "failed"} & set(answer)):
            raise ValueError("an answer that is neither ok nor failed")
        return answer
    except (ValueError, RecursionError) as exc:
        raise Lost("garbage", str(exc)) from exc
