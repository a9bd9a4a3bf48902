"""Owner of what episodes need: who plays them, the environment processes, and the thread on which they meet.

In: plans and a sampling rule. Out: groups and their metrics. Episodes are coroutines on one event loop that lives
as long as the run, because the pool and the decoder hold state that belongs to a loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from jaxagent.clock import Meter
from jaxagent.config import RolloutConfig, RunConfig
from jaxagent.envs.pool import Deadlines, EnvPool
from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.ray_pool import RayCluster, open_ray_pool
from jaxagent.prepare import Prepared
from jaxagent.rollout.episode import EpisodeLimits, run_episode
from jaxagent.rollout.plans import Quorum, RolloutRules, Runner, run_plans
from jaxagent.rollout.stats import rollout_metrics
from jaxagent.rollout.talk import Agent, run_talk
from jaxagent.stage import FollowUp, Plan
from jaxagent.types import Generate, Group, Metrics, Sampling, Task

T = TypeVar("T")
Players = Callable[[EnvPool, Sampling, EpisodeLimits, int], Runner]
"""(pool, sampling rule, limits, seed) -> what plays one episode."""
Through = Callable[[Runner], Runner]
"""Goes round what plays an episode, e.g. to keep what was played (eval/ledger.py)."""


@dataclass(frozen=True)
class Collected:
    """An iteration's groups, and what collecting them looked like."""

    groups: tuple[Group, ...]
    metrics: Metrics


def joined(first: Collected, second: Collected) -> Collected:
    """Two rounds of one iteration."""
    groups = first.groups + second.groups
    counts = {
        name: int(first.metrics[f"rollout/{name}"] + second.metrics[f"rollout/{name}"])
        for name in ("submitted", "retries")
    }
    return Collected(groups, rollout_metrics(groups, **counts))


def collected_with(
    follow_up: FollowUp | None, plans: Sequence[Plan], play: Callable[[Sequence[Plan], int], Collected]
) -> Collected:
    """An iteration's rounds: its plans, then what `follow_up` asks for, until it asks for nothing.

    play: (plans, number of the round).
    """
    collected = play(plans, 0)
    number = 0
    while follow_up is not None and (more := follow_up(collected.groups)):
        number += 1
        collected = joined(collected, play(more, number))
    return collected


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
    ) -> Collected:
        """Roll out every plan. `seed` names the random streams: the same seed and weights sample the same."""
        runner = self.players(self._pool, sampling, self.limits, seed)
        return self._call(_collected(plans, runner, self.rules))

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

    def close(self) -> None:
        self._call(self._pool.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the episodes' thread; an interrupt of this thread cancels the work."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


async def _collected(plans: Sequence[Plan], runner: Runner, rules: RolloutRules) -> Collected:
    groups, metrics = await run_plans(plans, runner, rules=rules)
    return Collected(tuple(groups), metrics)


async def _opened(open_pool: Callable[[], EnvPool]) -> EnvPool:
    """A pool belongs to the event loop on which it is made."""
    return open_pool()


def open_rollouts(prepared: Prepared, generate: Generate, meter: Meter) -> Rollouts:
    """Episodes of a policy of ours, token by token, as the run file says."""

    def players(pool: EnvPool, sampling: Sampling, limits: EpisodeLimits, seed: int) -> Runner:
        return partial(
            run_episode,
            prepared.env,
            generate=generate,
            pool=pool,
            renderer=prepared.renderer,
            sampling=sampling,
            limits=limits,
            key_seed=seed,
        )

    first = next(iter(prepared.tasks.values()))[0]
    return _open(prepared.config, prepared.env, players, meter, first=first)


def open_talks(
    config: RunConfig, spec: EnvSpec, agent: Callable[[Sampling, int], Agent], meter: Meter
) -> Rollouts:
    """Episodes of an agent that speaks in messages. agent: (sampling rule, seed) -> who plays."""

    def players(pool: EnvPool, sampling: Sampling, limits: EpisodeLimits, seed: int) -> Runner:
        return partial(run_talk, spec, agent=agent(sampling, seed), pool=pool, limits=limits)

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
    quorum = Quorum(rollout.quorum, per_task=rollout.quorum_per_task) if rollout.quorum < 1 else None
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
