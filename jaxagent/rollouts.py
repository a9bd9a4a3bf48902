"""Owner of what episodes need: the decoder, the environment processes, and the thread on which they meet.

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

from jaxagent.chat.render import Renderer
from jaxagent.clock import Meter
from jaxagent.decode.engine import Engine
from jaxagent.envs.pool import Deadlines, EnvPool
from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.ray_pool import RayCluster, open_ray_pool
from jaxagent.prepare import Prepared
from jaxagent.rollout.episode import EpisodeLimits, run_episode
from jaxagent.rollout.plans import Quorum, RolloutRules, run_plans
from jaxagent.stage import Plan
from jaxagent.types import Group, Metrics, Sampling

T = TypeVar("T")


@dataclass(frozen=True)
class Collected:
    """An iteration's groups, and what collecting them looked like."""

    groups: tuple[Group, ...]
    metrics: Metrics


class Rollouts:
    """Runs plans to their end. Close it: it owns processes and a thread."""

    def __init__(
        self,
        spec: EnvSpec,
        engine: Engine,
        renderer: Renderer,
        *,
        limits: EpisodeLimits,
        rules: RolloutRules,
        open_pool: Callable[[], EnvPool],
    ):
        self.spec, self.engine, self.renderer, self.limits, self.rules = spec, engine, renderer, limits, rules
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
        limits: EpisodeLimits | None = None,
        rules: RolloutRules | None = None,
    ) -> Collected:
        """Roll out every plan. `seed` names the random streams: the same seed and weights sample the same."""
        runner = partial(
            run_episode,
            self.spec,
            generate=self.engine,
            pool=self._pool,
            renderer=self.renderer,
            sampling=sampling,
            limits=limits or self.limits,
            key_seed=seed,
        )
        groups, metrics = self._call(run_plans(plans, runner, rules=rules or self.rules))
        return Collected(tuple(groups), metrics)

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


async def _opened(open_pool: Callable[[], EnvPool]) -> EnvPool:
    """A pool belongs to the event loop on which it is made."""
    return open_pool()


def _open_pool(prepared: Prepared, meter: Meter) -> EnvPool:
    """On the back end of the run file; its workers start and load the environment while the programs compile."""
    config = prepared.config.env
    deadlines = Deadlines(step_s=prepared.config.rollout.step_seconds)
    if config.backend == "ray":
        cluster = RayCluster(config.ray_address, config.worker_cpus)
        pool = open_ray_pool(config.workers, cluster, deadlines=deadlines, meter=meter)
    else:
        pool = EnvPool(config.workers, deadlines=deadlines, meter=meter)
    pool.warm(prepared.env, prepared.train_tasks[0])
    return pool


def open_rollouts(prepared: Prepared, engine: Engine, meter: Meter) -> Rollouts:
    """As the run file says. The lower of the run's and the environment's limits holds."""
    rollout, spec = prepared.config.rollout, prepared.env
    quorum = Quorum(rollout.quorum, per_task=2) if rollout.quorum < 1 else None  # one rollout has no baseline
    return Rollouts(
        spec,
        engine,
        prepared.renderer,
        limits=EpisodeLimits(
            context=rollout.context,
            max_steps=min(rollout.max_steps, spec.max_steps),
            max_observation_chars=min(rollout.max_observation_chars, spec.max_observation_chars),
        ),
        rules=RolloutRules(concurrency=rollout.slots, retries=rollout.retries, quorum=quorum),
        open_pool=partial(_open_pool, prepared, meter),
    )
