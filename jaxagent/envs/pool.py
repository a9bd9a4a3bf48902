"""Environments in worker processes, behind an asyncio front.

`await pool.open(spec, task)` gives an `EnvHandle`; each of its calls has one deadline, counted from when the
worker takes it up. A worker that hangs, dies or answers garbage is killed and replaced, and every episode it
hosted gets an `EnvFailure` at its next call; the other workers go on. `InlinePool` has the same interface and
runs environments in this process, for tests and debugging.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, TypeVar, runtime_checkable

from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.wire import decode_evaluation, decode_step
from jaxagent.envs.worker import EnvTable
from jaxagent.envs.worker_client import Lost, Worker
from jaxagent.errors import ConfigError, EnvFailure
from jaxagent.types import Action, Evaluation, StepResult, Task


@dataclass(frozen=True)
class Deadlines:
    """Seconds each call may take. `EnvSpec.worker["step_s"]` overrides step_s for its environment.

    start_s: until a new worker answers (imports included). reset_s includes the import of the environment.
    """

    start_s: float = 60.0
    reset_s: float = 120.0
    step_s: float = 60.0
    evaluate_s: float = 60.0
    close_s: float = 20.0


Record = TypeVar("Record", StepResult, Evaluation)
Call = Callable[[str, Any], Awaitable[dict[str, Any]]]


class EnvHandle:
    """One open environment. `first` is the reset result. Calls raise EnvFailure; close never does."""

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

    async def open(self, spec: EnvSpec, task: Task) -> EnvHandle: ...


class EnvPool:
    """Owner of the worker processes. Use as an async context manager, from one event loop."""

    def __init__(self, workers: int, *, deadlines: Deadlines | None = None):
        if workers < 1:
            raise ConfigError(f"env.workers={workers}; at least one worker process is needed")
        self._deadlines = deadlines or Deadlines()
        self._counts: Counter[str] = Counter()
        self._workers = [Worker(self._deadlines.start_s, self._counts) for _ in range(workers)]
        self._room = asyncio.Condition()
        self._next = 0

    @property
    def counts(self) -> Counter[str]:
        """opened, step, evaluate, restarts, env_seconds, and failures by kind."""
        return self._counts

    async def open(self, spec: EnvSpec, task: Task) -> EnvHandle:
        _check_importable(spec)
        worker = await self._claim(int(spec.worker.get("envs_per_worker", 0)))
        self._next += 1
        number, memory_gb = self._next, float(spec.worker.get("memory_gb", 0))
        seconds = {
            "open": self._deadlines.reset_s,
            "step": float(spec.worker.get("step_s", self._deadlines.step_s)),
            "evaluate": self._deadlines.evaluate_s,
            "close": self._deadlines.close_s,
        }
        generation: list[int] = []  # filled when the worker takes up the first call

        async def call(operation: str, argument: Any) -> dict[str, Any]:
            request = pickle.dumps((operation, number, argument))
            return await self._call(worker, operation, request, seconds[operation], generation)

        async def release() -> None:
            try:
                if generation and generation[0] == worker.generation:
                    await call("close", None)
            except EnvFailure:
                pass  # counted by _call; the episode is over either way
            finally:
                await self._unclaim(worker)

        return await EnvHandle(call, release, self._counts).reset((spec.make, task, memory_gb))

    async def close(self) -> None:
        await asyncio.gather(*(worker.close() for worker in self._workers))

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
                worker = min(self._workers, key=lambda worker: worker.load)
                if not limit or worker.load < limit:
                    worker.load += 1
                    return worker
                await self._room.wait()

    async def _unclaim(self, worker: Worker) -> None:
        async with self._room:
            worker.load -= 1
            self._room.notify()

    async def _call(
        self, worker: Worker, operation: str, request: bytes, seconds: float, generation: list[int]
    ) -> dict[str, Any]:
        """One exchange, not interrupted by cancellation of the caller: the worker answers in order."""
        exchange = asyncio.ensure_future(worker.exchange(request, seconds, generation))
        exchange.add_done_callback(_retrieve)
        try:
            answer, busy_s = await asyncio.shield(exchange)
        except Lost as lost:
            self._counts[lost.kind] += 1
            raise EnvFailure(lost.kind, f"{operation}: {lost}") from lost
        self._counts[operation] += 1
        self._counts["env_milliseconds"] += round(1000 * busy_s)
        if "failed" in answer:
            self._counts[str(answer["failed"])] += 1
            raise EnvFailure(str(answer["failed"]), str(answer.get("message")))
        return answer["ok"]


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


class InlinePool:
    """The same interface without processes or deadlines: environments run in the caller's thread."""

    def __init__(self) -> None:
        self._table, self._counts, self._next = EnvTable(), Counter[str](), 0

    @property
    def counts(self) -> Counter[str]:
        return self._counts

    async def open(self, spec: EnvSpec, task: Task) -> EnvHandle:
        self._next += 1
        number = self._next

        async def call(operation: str, argument: Any) -> dict[str, Any]:
            await asyncio.sleep(0)  # other episodes run between calls, as with workers
            start = time.monotonic()
            try:
                answer = {
                    "open": lambda: self._table.open(number, spec.make, task),
                    "step": lambda: self._table.step(number, argument),
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
