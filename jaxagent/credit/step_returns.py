"""Step rewards as step credit: the discounted return from each step on, relative to the group.

    ret[i,k] = sum over j >= k of gamma^(j-k) r[i,j]
    baseline "step"    A[i,k] = ret[i,k] - mean of ret[j,k] over the rollouts j that took a step k
    baseline "start"   A[i,k] = ret[i,k] - mean of ret[j,0] over all rollouts j

With leave_one_out the means are those of the other rollouts. A reward on the way then lifts the steps that led to it,
and not those behind it. "start" knows nothing of what is already paid: behind a subgoal every step falls below it. A
step that only one rollout took has nothing to be compared with, and advantage 0 under "step". With gamma 1 and nothing
but the outcome, "start" is the trajectory-level estimator.

`shaping` adds rewards that are not part of the return, e.g. potential-based ones (rewards/subgoals.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float

from jaxagent.credit.gigpo import step_advantages
from jaxagent.credit.group import Estimate, group_mean, per_group_steps, zero_variance
from jaxagent.errors import ConfigError, RolloutError
from jaxagent.rewards.step_rewards import REWARDS, Rewards, StepRewards, discounted
from jaxagent.stage import Credit
from jaxagent.types import Trajectory

Baseline = Literal["step", "start"]


def step_returns(
    estimate: Estimate = group_mean,
    *,
    gamma: float = 1.0,
    baseline: Baseline = "step",
    rewards: Rewards = "outcome",
    shaping: StepRewards | None = None,
) -> Credit:
    """estimate: `group_mean` or `leave_one_out`; anything that only takes a baseline off."""
    if not 0 <= gamma <= 1:
        raise ConfigError(f"step_returns(gamma={gamma}): expected 0 to 1")
    reward_steps = REWARDS[rewards]

    def on_group(alive: Sequence[Trajectory]) -> list[Float[np.ndarray, "_"]]:
        returns_K = []
        for trajectory in alive:
            reward_K = reward_steps(trajectory) + (shaping(trajectory) if shaping else 0.0)
            if not np.isfinite(reward_K).all():
                raise RolloutError(f"{trajectory.traj_id!r} has step rewards that are not finite: {reward_K}")
            returns_K.append(discounted(reward_K, gamma))
        if baseline == "start":
            return from_start(returns_K, estimate)
        return step_advantages(returns_K, [np.arange(len(return_K)) for return_K in returns_K], estimate)

    return per_group_steps(on_group)


def from_start(
    returns_K: Sequence[Float[np.ndarray, "_"]], estimate: Estimate
) -> list[Float[np.ndarray, "_"]]:
    """Minus the baseline of the first step's return; an episode without a step has return 0.

    Nothing is learnt from a group whose returns agree, step by step, within float noise.
    """
    start_G = np.array([return_K[0] if return_K.size else 0.0 for return_K in returns_K])
    if start_G.size < 2 or zero_variance(np.concatenate(returns_K)):
        return [np.zeros_like(return_K) for return_K in returns_K]
    baseline_G = start_G - estimate(start_G)
    return [return_K - baseline for return_K, baseline in zip(returns_K, baseline_G)]
