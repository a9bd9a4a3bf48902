"""Rewards per step, and returns from each step on. In: a `Trajectory` with its return. Out: [K] arrays for credit/.

A return can be a sum of which some parts belong to steps: a penalty for an illegal action, a subgoal reached. They are
kept in the trajectory's `extra` (rewards/returns.py); added into the return only, and broadcast to all steps, they
would say nothing about the steps that earned them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
from jaxtyping import Float

from jaxagent.rewards.returns import PARTS, STEP_REWARDS
from jaxagent.types import Trajectory

Rewards = Literal["outcome", "environment"]
StepRewards = Callable[[Trajectory], Float[np.ndarray, "K"]]


def outcome_rewards(trajectory: Trajectory) -> Float[np.ndarray, "K"]:
    """The return: what belongs to a step at that step, the rest at the last one."""
    reward_K = np.zeros(len(trajectory.steps))
    if reward_K.size:
        reward_K += np.asarray(trajectory.extra.get(STEP_REWARDS, 0.0))
        reward_K[-1] += trajectory.reward - reward_K.sum()
    return reward_K


def environment_rewards(trajectory: Trajectory) -> Float[np.ndarray, "K"]:
    """What the environment paid at each step, and the terms beside the outcome: penalties where they were earned."""
    paid_K = np.array([step.reward for step in trajectory.steps], np.float64)
    shaping = trajectory.extra.get(PARTS, {}).get("shaping", 0.0)
    return paid_K + outcome_rewards(replace(trajectory, reward=shaping))


REWARDS: dict[str, StepRewards] = {"outcome": outcome_rewards, "environment": environment_rewards}


def discounted(reward_K: Float[np.ndarray, "K"], gamma: float) -> Float[np.ndarray, "K"]:
    """Return from each step on. gamma .95: rewards 0, 0, 10 -> 9.025, 9.5, 10."""
    return_K, ahead = np.zeros_like(reward_K), 0.0
    for k in range(len(reward_K) - 1, -1, -1):
        ahead = reward_K[k] + gamma * ahead
        return_K[k] = ahead
    return return_K
