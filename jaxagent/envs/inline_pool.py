"""A pool without processes or deadlines: environments run in the caller's thread, for tests and debugging."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from types import TracebackType
from typing import Any

from jaxagent.envs.handle import EnvHandle
from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.replay import Prefix
from jaxagent.envs.worker import EnvTable
from jaxagent.errors import EnvFailure
from jaxagent.types import Task


class InlinePool:
    """See envs/pool.py for the interface."""

    def __init__(self) -> None:
        self._table, self._counts, self._next = EnvTable(), Counter[str](), 0

    @property
    def counts(self) -> Counter[str]:
        return self._counts

    async def open(self, spec: EnvSpec, task: Task, prefix: Prefix | None = None) -> EnvHandle:
        self._next += 1
        number = self._next

        async def call(operation: str, argument: Any) -> dict[str, Any]:
            await asyncio.sleep(0)  # other episodes run between calls, as with workers
            start = time.monotonic()
            try:
                answer = {
                    "open": lambda: self._table.open(number, spec.make, task, prefix),
                    "step": lambda: self._table.step(number, argument),
                    "snapshot": lambda: self._table.snapshot(number),
                    "evaluate": lambda: self._table.evaluate(number),
                    "close": lambda: self._table.close(number),
                }[operation]()
            except EnvFailure as exc:
                self._counts[exc.kind] += 1
                raise
            self._counts[operation] += 1
            self._counts["env_milliseconds"] += round(1000 * (time.monotonic() - start))
            return answer

        async def release() -> None:
            with contextlib.suppress(EnvFailure):  # counted by call; the episode is over either way
                await call("close", None)

        return await EnvHandle(call, release, self._counts).reset(None)

    async def close(self) -> None:
        """Nothing is left to end."""

    async def __aenter__(self) -> InlinePool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
