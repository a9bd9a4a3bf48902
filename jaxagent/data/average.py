"""A source that remembers how good the policy has been: REINFORCE's running-mean baseline.

In: an iteration's groups, after its update. Out: the mean return of the iterations before. Its state is checkpointed
with the tasks' position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxagent.credit.batch import totals
from jaxagent.credit.group import survivors
from jaxagent.errors import ConfigError
from jaxagent.plan import Plan
from jaxagent.rewards.step_rewards import StepRewards, outcome_rewards
from jaxagent.stage import Source
from jaxagent.types import Group, Metrics


class ReturnAverage:
    """Wraps a source. mean = decay x mean + (1 - decay) x the iteration's mean return; the first one stands alone.

    rewards: what a return is the sum of.
    """

    def __init__(self, source: Source, *, decay: float = 0.9, rewards: StepRewards = outcome_rewards):
        if not 0 <= decay < 1:
            raise ConfigError(
                f"decay={decay}: expected a number in [0, 1); 0.9 looks back about ten iterations"
            )
        self._source, self._decay, self._rewards = source, decay, rewards
        self._mean: float | None = None

    def baseline(self, reward_N: Float[np.ndarray, "N"]) -> float:
        """The mean before this iteration, so that no return is its own baseline; 0 in the first."""
        del reward_N
        return self._mean or 0.0

    def next(self, iteration: int) -> Sequence[Plan] | Sequence[Group]:
        return self._source.next(iteration)

    def observe(self, groups: Sequence[Group]) -> Metrics:
        used = self.baseline(np.zeros(0))
        reward_N = totals([t for group in groups for t in survivors(group)], self._rewards)
        if reward_N.size:
            new = float(reward_N.mean())
            self._mean = new if self._mean is None else self._decay * self._mean + (1 - self._decay) * new
        return {**self._source.observe(groups), "adv/baseline": used}

    def state(self) -> Mapping[str, Any]:
        return {"source": dict(self._source.state()), "mean": self._mean}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._source.restore(state["source"])
        self._mean = state["mean"]

    def close(self) -> None:
        self._source.close()
