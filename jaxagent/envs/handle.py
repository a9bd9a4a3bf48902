"""One open environment as the rollout sees it, and what it needs of a pool."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.replay import Prefix
from jaxagent.envs.wire import decode_evaluation, decode_state, decode_step
from jaxagent.errors import EnvFailure
from jaxagent.types import Action, Evaluation, StepResult, Task

Record = TypeVar("Record")
Call = Callable[[str, Any], Awaitable[dict[str, Any]]]


class EnvHandle:
    """One open environment. `first` is the result that the episode goes on from: of the reset, or of a prefix's
    last action. Calls raise EnvFailure; close never does.
    """

    first: StepResult

    def __init__(self, call: Call, release: Callable[[], Awaitable[None]], counts: Counter[str]):
        self._call, self._release, self._counts, self._closed = call, release, counts, False

    async def reset(self, argument: Any) -> EnvHandle:
        """The opening call, made by the pool."""
        try:
            self.first = self._decoded(decode_step, await self._call("open", argument))
        except BaseException:
            await asyncio.shield(self.close())
            raise
        self._counts["opened"] += 1
        return self

    async def step(self, action: Action) -> StepResult:
        return self._decoded(decode_step, await self._call("step", action))

    async def snapshot(self) -> bytes | None:
        """The state of the episode, for a `Prefix`; None if the environment has no snapshots (it is replayed)."""
        return self._decoded(decode_state, await self._call("snapshot", None))

    async def evaluate(self) -> Evaluation:
        return self._decoded(decode_evaluation, await self._call("evaluate", None))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._release()

    def _decoded(self, decode: Callable[[dict[str, Any]], Record], answer: dict[str, Any]) -> Record:
        try:
            return decode(answer)
        except EnvFailure as exc:
            self._counts[exc.kind] += 1
            raise


@runtime_checkable
class Pool(Protocol):
    """What the rollout needs of a pool."""

    @property
    def counts(self) -> Counter[str]: ...

    async def open(self, spec: EnvSpec, task: Task, prefix: Prefix | None = None) -> EnvHandle: ...
