"""Environments in worker processes, behind an asyncio front.

`await pool.open(spec, task)` gives an `EnvHandle`; each of its calls has one deadline, counted from when the
worker takes it up. A worker that hangs, dies or answers garbage is killed and replaced, and every episode it
hosted gets an `EnvFailure` at its next call; the other workers go on. A worn worker (limits.Wear) is replaced
between episodes. inline_pool.py has the same interface without processes; ray_pool.py has the workers on a cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from jaxagent.clock import ENVIRONMENTS, Meter
from jaxagent.envs.handle import EnvHandle
from jaxagent.envs.limits import Deadlines, Wear
from jaxagent.envs.local_process import LocalProcess
from jaxagent.envs.protocol import EnvSpec, check_importable
from jaxagent.envs.replay import Prefix
from jaxagent.envs.worker_client import Lost, Process, Worker
from jaxagent.errors import ConfigError, EnvFailure
from jaxagent.types import Task


class EnvPool:
    """Owner of the worker processes. Use as an async context manager, from one event loop.

    meter: counts the seconds in which a call is open. launch: makes one process of a worker; close: ends what
    the processes need beside themselves.
    """

    def __init__(
        self,
        workers: int,
        *,
        deadlines: Deadlines | None = None,
        meter: Meter | None = None,
        launch: Callable[[], Process] = LocalProcess,
        close: Callable[[], None] | None = None,
    ):
        if workers < 1:
            raise ConfigError(f"env.workers={workers}; at least one worker process is needed")
        self._deadlines = deadlines or Deadlines()
        self.meter = meter or Meter(ENVIRONMENTS)
        self._counts: Counter[str] = Counter()
        self.workers = [Worker(launch, self._deadlines.start_s, self._counts) for _ in range(workers)]
        self._room = asyncio.Condition()
        self._next = 0
        self._end = close
        self._warm: tuple[EnvSpec, Task] | None = None
        self._warming: set[asyncio.Future[None]] = set()

    @property
    def counts(self) -> Counter[str]:
        """opened, calls by name, restarts, recycled, warmed, env_milliseconds, and failures by kind."""
        return self._counts

    def warm(self, spec: EnvSpec, task: Task) -> None:
        """Start all workers in the background and let each open and close `task`, before an episode asks for it.

        What an environment loads once a process (imports, databases, a Java machine) is loaded then; workers that are
        replaced because they are worn are warmed again.
        """
        check_importable(spec, f"EnvSpec {spec.name!r}")
        self._warm = (spec, task)
        for worker in self.workers:
            self._start_warming(worker)

    async def open(self, spec: EnvSpec, task: Task, prefix: Prefix | None = None) -> EnvHandle:
        """Reset an environment, and bring it to the end of `prefix`. A deadline of its reset and of every replayed
        action. Raises EnvFailure("diverged") if the replay is not what was recorded.
        """
        check_importable(spec, f"EnvSpec {spec.name!r}")
        worker = await self._claim(int(spec.worker.get("envs_per_worker", 0)))
        lease = self._lease(worker, spec, prefix)
        return await EnvHandle(lease.call, lease.release, self._counts).reset(_opening(spec, task, prefix))

    async def close(self) -> None:
        """Kill all workers, whatever they are doing."""
        for job in self._warming:
            job.cancel()
        await asyncio.gather(*(worker.close() for worker in self.workers))
        await asyncio.gather(*self._warming, return_exceptions=True)
        if self._end is not None:
            self._end()

    async def __aenter__(self) -> EnvPool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _lease(self, worker: Worker, spec: EnvSpec, prefix: Prefix | None = None) -> _Lease:
        self._next += 1
        return _Lease(self, worker, self._next, self._deadlines.of(spec, prefix), Wear.of(spec))

    async def _claim(self, limit: int) -> Worker:
        """The worker with the fewest open episodes; waits while all are full (limit 0 is no limit) or worn.

        Those who wait are served in the order in which they came.
        """
        async with self._room:
            while True:
                free = [worker for worker in self.workers if not worker.worn]
                worker = min(free, key=lambda worker: worker.load, default=None)
                if worker is not None and (not limit or worker.load < limit):
                    worker.load += 1
                    return worker
                await self._room.wait()

    async def unclaim(self, worker: Worker) -> None:
        """The end of a lease."""
        async with self._room:
            worker.load -= 1
            if worker.worn and not worker.load:
                await worker.replace()
                self._start_warming(worker)
            self._room.notify_all()

    def _start_warming(self, worker: Worker) -> None:
        if self._warm is None:
            return
        worker.load += 1
        job = asyncio.ensure_future(self._warmed(worker, *self._warm))
        self._warming.add(job)
        job.add_done_callback(self._warming.discard)

    async def _warmed(self, worker: Worker, spec: EnvSpec, task: Task) -> None:
        lease = self._lease(worker, spec)
        try:
            await lease.call("open", _opening(spec, task, None))
            outcome = "warmed"
        except EnvFailure:
            outcome = "warming_failed"  # the first episode meets the same fault, and reports it
        finally:
            await asyncio.shield(lease.release())
        self._counts[outcome] += 1


class _Lease:
    """One environment's place in a worker."""

    def __init__(self, pool: EnvPool, worker: Worker, number: int, seconds: Mapping[str, float], wear: Wear):
        self._pool, self._worker, self._number = pool, worker, number
        self._seconds, self._wear = seconds, wear
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

    @property
    def _lives(self) -> bool:
        """Whether the worker still is the process that was asked to open the environment."""
        return bool(self._generation) and self._generation[0] == self._worker.generation

    async def release(self) -> None:
        """Close the environment, if its worker still has it, and give the place back."""
        try:
            if self._exchange is not None:  # a cancelled opening may still be on its way
                await asyncio.wait([self._exchange])
            if self._lives:
                resident = 0
                with contextlib.suppress(EnvFailure):  # counted by call; the episode is over either way
                    resident = int((await self.call("close", None)).get("resident", 0))
                if self._lives:
                    self._worker.ended(self._wear, resident)
        finally:
            await self._pool.unclaim(self._worker)


def _opening(spec: EnvSpec, task: Task, prefix: Prefix | None) -> tuple[Any, ...]:
    """What a worker needs to open an environment (worker.answer)."""
    return spec.make, task, prefix, float(spec.worker.get("memory_gb", 0))


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Mark the exception of an exchange whose caller was cancelled as seen."""
    if not future.cancelled():
        future.exception()
