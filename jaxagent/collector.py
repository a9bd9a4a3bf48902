"""Owner of a run's rollouts: which weights play an iteration's rounds, from which random streams, what may begin ahead.

In: plans of an iteration. Out: its groups, young enough to be learnt from. How an episode is played (rollouts.py) and
what waits for it (ahead.py) is not its job.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce

from jaxagent.ahead import Ahead
from jaxagent.collected import Collected, collected_with, joined, marked, renewed
from jaxagent.config import RunConfig
from jaxagent.plan import Plan
from jaxagent.rollout.staleness import fresh, lag_metrics, refuse_lending
from jaxagent.rollouts import Rollouts
from jaxagent.stage import Stage
from jaxagent.types import Sampling
from jaxagent.weights import Weights


class Collector:
    """Close it.

    ending: whether the run is about to stop: nothing new is begun, and what is in flight is learnt from first.
    quiet:  whether nothing may be in flight when so many iterations of the stage are done: it is saved or measured.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        weights: Weights,
        config: RunConfig,
        *,
        ending: Callable[[], bool],
        quiet: Callable[[int], bool],
    ):
        self.rollouts = rollouts
        self.max_lag, self._partial = config.rollout.max_lag, config.rollout.partial
        self.ahead = Ahead(self.max_lag - self._partial)
        self._weights, self._ending, self._quiet = weights, ending, quiet
        self._seed, self._reseed = config.seed, config.alarms.rollback.reseed
        self._index, self._again = 0, 0

    def begin(self, index: int, rolled_back: int) -> None:
        """A stage begins, or goes on after so many rollbacks in it."""
        self._index, self._again = index, rolled_back if self._reseed else 0

    def rollout(self, stage: Stage, plans: Sequence[Plan], iteration: int) -> Collected:
        """Roll out under the present weights, and whatever the stage asks for after seeing the groups."""
        sampling = stage.sampling_at(iteration)
        assert sampling is not None, f"stage {stage.name} has plans to roll out but no sampling rule"
        play = partial(self._play, stage, sampling, iteration)
        collected = collected_with(stage.follow_up, plans, play)
        if stage.temperature is None:
            return collected
        return replace(collected, metrics={**collected.metrics, "rollout/temperature": sampling.temperature})

    def _play(
        self, stage: Stage, sampling: Sampling, iteration: int, plans: Sequence[Plan], number: int
    ) -> Collected:
        """One round. Every plan under the weights that it names: first the policy's, which are loaded, then others in
        turn."""
        seed = stream(self._seed, self._index, iteration, number, rolled_back=self._again)
        rounds: dict[str, list[Plan]] = {}
        for plan in sorted(plans, key=lambda plan: plan.weights != "current"):
            rounds.setdefault(plan.weights, []).append(plan)
        if set(rounds) == {"current"}:
            return self.rollouts.run(plans, sampling, seed=seed, hold=self._holds(stage, iteration))
        refuse_lending(stage.name, self.max_lag)
        collected = []
        for name, some in rounds.items():
            if name != "current":
                self._weights.lend(name)
            found = self.rollouts.run(some, sampling, seed=seed)
            collected.append(found if name == "current" else marked(found, name))
        self._weights.lend("current")
        return reduce(joined, collected)

    def may_begin(self, stage: Stage, iteration: int) -> list[int]:
        """Later iterations whose rollouts may begin now. A stage that follows up on its groups runs in step."""
        if not stage.rolls_out or stage.follow_up is not None or self._ending():
            return []
        return list(self.ahead.may_begin(iteration, stage.iterations - 1, self._quiet))

    def _holds(self, stage: Stage, iteration: int) -> bool:
        """Whether groups may go on playing into the next iteration."""
        last = iteration + 1 == stage.iterations or stage.follow_up is not None
        return self._partial and not (last or self._ending() or self._quiet(iteration + 1))

    @property
    def in_flight(self) -> bool:
        return self.ahead.pending or self.rollouts.holding

    def fresh(self, stage: Stage, collected: Collected) -> Collected:
        """What is not too old to be trained on, counted; everything, without a lag."""
        if not self.max_lag or not stage.rolls_out:
            return collected
        handed = self._weights.handed
        groups = fresh(collected.groups, handed, max_lag=self.max_lag)
        return renewed(collected, groups, lag_metrics(groups, handed))

    def give_up(self) -> None:
        """End what is in flight; nobody waits for what is held."""
        self.ahead.clear(self.rollouts.cancel)
        self.rollouts.cancel()

    def close(self) -> None:
        self.ahead.close(self.rollouts.cancel)
        self.rollouts.close()


def stream(seed: int, index: int, iteration: int, number: int, *, rolled_back: int = 0) -> int:
    """Names the random streams of an iteration's rollouts, of round `number` of its follow-ups."""
    place = f"{seed}/{index}/{iteration}" + (f"/{number}" if number else "")
    place += f"/rollback {rolled_back}" if rolled_back else ""
    return zlib.crc32(place.encode()) >> 1
