"""Owner of what episodes need: who plays them, the environment processes, and the thread on which they meet.

In: plans and a sampling rule. Out: groups and their metrics. Episodes are coroutines on one event loop that lives
as long as the run, because the pool and the decoder hold state that belongs to a loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from jaxagent.clock import Meter
from jaxagent.collected import Collected
from jaxagent.config import RunConfig
from jaxagent.envs.pool import Deadlines, EnvPool
from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.ray_pool import RayCluster, open_ray_pool
from jaxagent.plan import Plan
from jaxagent.prepare import Prepared
from jaxagent.rollout.episode import Setup, run_episode
from jaxagent.rollout.limits import EpisodeLimits
from jaxagent.rollout.plans import Held, Quorum, RolloutRules, Runner, run_plans
from jaxagent.rollout.settings import RolloutConfig
from jaxagent.rollout.talk import Agent, run_talk
from jaxagent.types import Completion, Generate, GenerateRequest, Sampling, Task

T = TypeVar("T")
Players = Callable[[EnvPool, Sampling, EpisodeLimits, int], Runner]
"""(pool, sampling rule, limits, seed) -> what plays one episode."""
Through = Callable[[Runner], Runner]
"""Goes round what plays an episode, e.g. to keep what was played (eval/ledger.py)."""


class Rollouts:
    """Runs plans to their end. Close it: it owns processes and a thread."""

    def __init__(
        self,
        players: Players,
        *,
        limits: EpisodeLimits,
        rules: RolloutRules,
        open_pool: Callable[[], EnvPool],
    ):
        self.players, self.limits, self.rules = players, limits, rules
        self._live: set[Future[Any]] = set()
        self._held = Held()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="episodes", daemon=True)
        self._thread.start()
        self._pool = self._call(_opened(open_pool))

    def run(
        self,
        plans: Sequence[Plan],
        sampling: Sampling,
        *,
        seed: int,
        hold: bool = False,
    ) -> Collected:
        """Roll out every plan. `seed` names the random streams: the same seed and weights sample the same.

        hold: leave groups that are not whole at the quorum playing; the next run gives them. Without it a run waits
              for what is held.
        """
        runner = self.players(self._pool, sampling, self.limits, seed)
        return self._call(_collected(plans, runner, self._rules(hold), self._held))

    def _rules(self, hold: bool) -> RolloutRules:
        """The run's quorum cuts, or it holds; what would be held is then waited for in a run that must not."""
        quorum = self.rules.quorum
        if quorum is None or not quorum.hold or hold:
            return self.rules
        return replace(self.rules, quorum=None)

    @property
    def holding(self) -> bool:
        """Whether episodes play on between two runs."""
        return self._held.episodes > 0

    async def measure(
        self,
        plans: Sequence[Plan],
        sampling: Sampling,
        *,
        seed: int,
        limits: EpisodeLimits,
        rules: RolloutRules,
        through: Through | None = None,
    ) -> Collected:
        """The same from within a loop of the caller's, which must not be blocked: there an interrupt cancels a task."""
        runner = self.players(self._pool, sampling, limits, seed)
        runner = runner if through is None else through(runner)
        work = asyncio.run_coroutine_threadsafe(_collected(plans, runner, rules), self._loop)
        return await asyncio.wrap_future(work)

    def reachable(self, generate: Generate) -> Generate:
        """The same policy for callers on other event loops, asked on the loop of the episodes."""
        return _Reachable(generate, self._loop)

    def cancel(self) -> None:
        """End what other threads wait for."""
        for future in list(self._live):
            future.cancel()
        self._call(self._held.cancel())

    def close(self) -> None:
        self._call(self._held.cancel())
        self._call(self._pool.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the episodes' thread; an interrupt of this thread cancels the work."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._live.add(future)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise
        finally:
            self._live.discard(future)


class _Reachable:
    """A `Generate` whose requests run on a loop that is not the caller's."""

    def __init__(self, generate: Generate, loop: asyncio.AbstractEventLoop):
        self._generate, self._loop = generate, loop

    async def __call__(self, request: GenerateRequest) -> Completion:
        return await self._there(self._generate(request))

    async def release(self, session: str) -> None:
        await self._there(self._generate.release(session))

    async def _there(self, work: Awaitable[T]) -> T:
        async def run() -> T:
            return await work

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), self._loop))


async def _collected(
    plans: Sequence[Plan], runner: Runner, rules: RolloutRules, held: Held | None = None
) -> Collected:
    groups, metrics = await run_plans(plans, runner, rules=rules, held=held)
    return Collected(tuple(groups), metrics)


async def _opened(open_pool: Callable[[], EnvPool]) -> EnvPool:
    """A pool belongs to the event loop on which it is made."""
    return open_pool()


def open_rollouts(prepared: Prepared, generate: Generate, meter: Meter) -> Rollouts:
    """Episodes of a policy of ours, token by token, as the run file says."""

    def players(pool: EnvPool, sampling: Sampling, limits: EpisodeLimits, seed: int) -> Runner:
        setup = Setup(prepared.env, generate, pool, prepared.renderer, sampling, limits, seed)
        return partial(run_episode, setup)

    first = next(iter(prepared.tasks.values()))[0]
    return _open(prepared.config, prepared.env, players, meter, first=first)


def open_talks(
    config: RunConfig, spec: EnvSpec, agent: Callable[[Sampling, int], Agent], meter: Meter
) -> Rollouts:
    """Episodes of an agent that speaks in messages. agent: (sampling rule, seed) -> who plays."""

    def players(pool: EnvPool, sampling: Sampling, limits: EpisodeLimits, seed: int) -> Runner:
        return partial(run_talk, spec=spec, agent=agent(sampling, seed), pool=pool, limits=limits)

    return _open(config, spec, players, meter)


def _open_pool(config: RunConfig, spec: EnvSpec, meter: Meter, first: Task | None) -> EnvPool:
    """On the back end of the run file; its workers load the environment with the first task while programs compile."""
    env, deadlines = config.env, Deadlines(step_s=config.rollout.step_seconds)
    if env.backend == "ray":
        cluster = RayCluster(env.ray_address, env.worker_cpus)
        pool = open_ray_pool(env.workers, cluster, deadlines=deadlines, meter=meter)
    else:
        pool = EnvPool(env.workers, deadlines=deadlines, meter=meter)
    if first is not None:
        pool.warm(spec, first)
    return pool


def rules_of(rollout: RolloutConfig) -> RolloutRules:
    """With `partial` the quorum holds what is not whole instead of cutting it."""
    asked = Quorum(rollout.quorum, per_task=rollout.quorum_per_task, hold=rollout.partial)
    quorum = asked if rollout.quorum < 1 else None
    return RolloutRules(concurrency=rollout.slots, retries=rollout.retries, quorum=quorum)


def _open(
    config: RunConfig, spec: EnvSpec, players: Players, meter: Meter, *, first: Task | None = None
) -> Rollouts:
    """The lower of the run's and the environment's limits holds."""
    rollout = config.rollout
    return Rollouts(
        players,
        limits=EpisodeLimits(
            context=rollout.context,
            max_steps=min(rollout.max_steps, spec.max_steps),
            max_observation_chars=min(rollout.max_observation_chars, spec.max_observation_chars),
        ),
        rules=rules_of(rollout),
        open_pool=partial(_open_pool, config, spec, meter, first),
    )
