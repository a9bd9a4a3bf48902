"""Environments in worker processes, behind an asyncio front.

`await pool.open(spec, task)` gives an `EnvHandle`; each of its calls has one deadline, counted from when the
worker takes it up. A worker that hangs, dies or answers garbage is killed and replaced, and every episode it
hosted gets an `EnvFailure` at its next call; the other workers go on. inline_pool.py has the same interface
without processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, TypeVar, runtime_checkable

from jaxagent.clock import ENVIRONMENTS, Meter
from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.replay import Prefix
from jaxagent.envs.wire import decode_evaluation, decode_state, decode_step
from jaxagent.envs.worker_client import Lost, Worker
from jaxagent.errors import ConfigError, EnvFailure
from jaxagent.types import Action, Evaluation, StepResult, Task

STEP_S = 60.0


@dataclass(frozen=True)
class Deadlines:
    """Seconds each call may take.

    start_s: until a new worker answers (imports included). reset_s includes the import of the environment.
    step_s:  0 takes the environment's own `EnvSpec.worker["step_s"]`, 60 where it has none.
    """

    start_s: float = 60.0
    reset_s: float = 120.0
    step_s: float = 0.0
    evaluate_s: float = 60.0
    close_s: float = 20.0

    def of(self, spec: EnvSpec, prefix: Prefix | None = None) -> dict[str, float]:
        """Seconds by call name. Opening takes a step more for every action that is replayed."""
        step_s = self.step_s or float(spec.worker.get("step_s", STEP_S))
        return {
            "open": self.reset_s + step_s * len(prefix.actions if prefix else ()),
            "step": step_s,
            "snapshot": step_s,
            "evaluate": self.evaluate_s,
            "close": self.close_s,
        }


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


class EnvPool:
    """Owner of the worker processes. Use as an async context manager, from one event loop.

    meter: counts the seconds in which a call is open.
    """

    def __init__(self, workers: int, *, deadlines: Deadlines | None = None, meter: Meter | None = None):
        if workers < 1:
            raise ConfigError(f"env.workers={workers}; at least one worker process is needed")
        self._deadlines = deadlines or Deadlines()
        self.meter = meter or Meter(ENVIRONMENTS)
        self._counts: Counter[str] = Counter()
        self.workers = [Worker(self._deadlines.start_s, self._counts) for _ in range(workers)]
        self._room = asyncio.Condition()
        self._next = 0

    @property
    def counts(self) -> Counter[str]:
        """opened, calls by name, restarts, env_milliseconds, and failures by kind."""
        return self._counts

    async def open(self, spec: EnvSpec, task: Task, prefix: Prefix | None = None) -> EnvHandle:
        """Reset an environment, and bring it to the end of `prefix`. A deadline of its reset and of every replayed
        action. Raises EnvFailure("diverged") if the replay is not what was recorded.
        """
        _check_importable(spec)
        worker = await self._claim(int(spec.worker.get("envs_per_worker", 0)))
        self._next += 1
        lease = _Lease(self, worker, self._next, self._deadlines.of(spec, prefix))
        handle = EnvHandle(lease.call, lease.release, self._counts)
        return await handle.reset((spec.make, task, prefix, float(spec.worker.get("memory_gb", 0))))

    async def close(self) -> None:
        await asyncio.gather(*(worker.close() for worker in self.workers))

    async def __aenter__(self) -> EnvPool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _claim(self, limit: int) -> Worker:
        """The worker with the fewest open episodes; waits while all are full (limit 0 is no limit)."""
        async with self._room:
            while True:
                worker = min(self.workers, key=lambda worker: worker.load)
                if not limit or worker.load < limit:
                    worker.load += 1
                    return worker
                await self._room.wait()

    async def unclaim(self, worker: Worker) -> None:
        """The end of a lease."""
        async with self._room:
            worker.load -= 1
            self._room.notify_all()


class _Lease:
    """One environment's place in a worker."""

    def __init__(self, pool: EnvPool, worker: Worker, number: int, seconds: Mapping[str, float]):
        self._pool, self._worker, self._number, self._seconds = pool, worker, number, seconds
        self._generation: list[int] = []  # filled when the worker takes up the first call
        self._exchange: asyncio.Future[tuple[dict[str, Any], float]] | None = None

    async def call(self, operation: str, argument: Any) -> dict[str, Any]:
        """One exchange. It outlives a cancelled caller: the worker answers in order."""
        request = pickle.dumps((operation, self._number, argument))
        work = self._worker.exchange(request, self._seconds[operation], self._generation)
        self._exchange = asyncio.ensure_future(work)
        self._exchange.add_done_callback(_retrieve)
        counts = self._pool.counts
        try:
            with self._pool.meter.during(ENVIRONMENTS):
                answer, busy_s = await asyncio.shield(self._exchange)
        except Lost as lost:
            counts[lost.kind] += 1
            raise EnvFailure(lost.kind, f"{operation}: {lost}") from lost
        counts[operation] += 1
        counts["env_milliseconds"] += round(1000 * busy_s)
        if "failed" in answer:
            counts[str(answer["failed"])] += 1
            raise EnvFailure(str(answer["failed"]), str(answer.get("message")))
        return answer["ok"]

    async def release(self) -> None:
        """Close the environment, if its worker still has it, and give the place back."""
        try:
            if self._exchange is not None:  # a cancelled opening may still be on its way
                await asyncio.wait([self._exchange])
            if self._generation and self._generation[0] == self._worker.generation:
                with contextlib.suppress(EnvFailure):  # counted by call; the episode is over either way
                    await self.call("close", None)
        finally:
            await self._pool.unclaim(self._worker)


def _check_importable(spec: EnvSpec) -> None:
    try:
        pickle.dumps(spec.make)
    except (pickle.PicklingError, AttributeError, TypeError) as exc:
        raise ConfigError(
            f"EnvSpec {spec.name!r}: make={spec.make!r} must be importable by the worker processes "
            f"(a module-level function, class or functools.partial): {exc}"
        ) from exc


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Mark the exception of an exchange whose caller was cancelled as seen."""
    if not future.cancelled():
        future.exception()
