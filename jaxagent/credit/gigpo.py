"""GiGPO: group-in-group advantages (arXiv 2505.10978). Steps from the same state are compared with each other.

    ret[i,k] = sum over j >= k of gamma^(j-k) r[i,j]
    A[i,k]   = A_E[i] + w (ret[i,k] - mean of its anchor group)            "mean"; "mean_std" divides both by their std

An anchor group holds the steps of one task's rollouts whose state before the message (`Step.anchor`) is the same; a
state seen once has no step advantage. The first state of a task is always shared. Rewards are the environment's own,
step by step, or the return alone, paid at the last step ("outcome").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from jaxagent.credit.group import Estimate, group_mean, group_std, per_group_steps, zero_variance
from jaxagent.errors import ConfigError, RolloutError
from jaxagent.rewards.returns import PARTS
from jaxagent.stage import Credit
from jaxagent.types import Step, Trajectory

Mode = Literal["mean", "mean_std"]
Rewards = Literal["outcome", "environment"]


def gigpo(
    *,
    gamma: float = 0.95,
    w: float = 1.0,
    mode: Mode = "mean_std",
    rewards: Rewards = "outcome",
    similarity: float = 0.0,
) -> Credit:
    """Episode advantage plus w times step advantage. w=0 is GRPO ("mean_std") or its mean-only form.

    similarity: 0 compares states by equality; above, a state joins the first cluster whose first member has at least
                this `SequenceMatcher` ratio (0.95 is usual).
    """
    if not 0 <= gamma <= 1 or w < 0 or not 0 <= similarity <= 1:
        raise ConfigError(
            f"gigpo(gamma={gamma}, w={w}, similarity={similarity}): expected gamma and similarity in [0, 1], w >= 0"
        )
    estimate = group_std(ddof=1) if mode == "mean_std" else group_mean
    reward_steps = REWARDS[rewards]

    def on_group(alive: Sequence[Trajectory]) -> list[Float[np.ndarray, "_"]]:
        rewards_K = [reward_steps(trajectory) for trajectory in alive]
        return_G = np.array([reward_K.sum() for reward_K in rewards_K])
        if not np.isfinite(return_G).all():
            raise RolloutError(f"task {alive[0].task.task_id!r} has a return that is not finite: {return_G}")
        episode_G = _relative(return_G, estimate)
        anchors_K = anchor_ids([trajectory.steps for trajectory in alive], similarity=similarity)
        step_K = step_advantages([discounted(r, gamma) for r in rewards_K], anchors_K, estimate)
        return [episode + w * advantage_K for episode, advantage_K in zip(episode_G, step_K)]

    return per_group_steps(on_group)


def outcome_rewards(trajectory: Trajectory) -> Float[np.ndarray, "K"]:
    """The return at the last step; a penalty for illegal actions at the steps that earned it."""
    reward_K = np.zeros(len(trajectory.steps))
    illegal_K = np.array([bool(step.action.error) for step in trajectory.steps], bool)
    penalty = trajectory.extra.get(PARTS, {}).get("invalid_action", 0.0)
    if illegal_K.any():
        reward_K[illegal_K] = penalty / illegal_K.sum()
    if reward_K.size:
        reward_K[-1] += trajectory.reward - reward_K.sum()
    return reward_K


def environment_rewards(trajectory: Trajectory) -> Float[np.ndarray, "K"]:
    """What the environment paid at each step; the return is their sum."""
    return np.array([step.reward for step in trajectory.steps], np.float64)


REWARDS: dict[str, Callable[[Trajectory], Float[np.ndarray, "K"]]] = {
    "outcome": outcome_rewards,
    "environment": environment_rewards,
}


def discounted(reward_K: Float[np.ndarray, "K"], gamma: float) -> Float[np.ndarray, "K"]:
    """Return from each step on. gamma .95: rewards 0, 0, 10 -> 9.025, 9.5, 10."""
    return_K, ahead = np.zeros_like(reward_K), 0.0
    for k in range(len(reward_K) - 1, -1, -1):
        ahead = reward_K[k] + gamma * ahead
        return_K[k] = ahead
    return return_K


def anchor_ids(episodes: Sequence[Sequence[Step]], *, similarity: float) -> list[Int[np.ndarray, "_"]]:
    """A number for the state before each step; equal numbers are compared. Linear in the steps without similarity."""
    known: dict[str, int] = {}
    heads: list[tuple[str, int]] = []  # first member of each cluster

    def number(state: str) -> int:
        if state not in known:
            near = (i for head, i in heads if similarity and _alike(head, state, similarity))
            known[state] = next(near, len(heads))
            if known[state] == len(heads):
                heads.append((state, len(heads)))
        return known[state]

    return [
        np.array([number(step.anchor or step.observation_before) for step in steps], int)
        for steps in episodes
    ]


def _alike(a: str, b: str, threshold: float) -> bool:
    match = SequenceMatcher(None, a, b)
    return (
        match.real_quick_ratio() >= threshold
        and match.quick_ratio() >= threshold
        and match.ratio() >= threshold
    )


def step_advantages(
    returns_K: Sequence[Float[np.ndarray, "_"]], anchors_K: Sequence[Int[np.ndarray, "_"]], estimate: Estimate
) -> list[Float[np.ndarray, "_"]]:
    """Relative to the steps of the same anchor, over all episodes of the group; 0 for a state seen once."""
    return_X, anchor_X = np.concatenate(returns_K), np.concatenate(anchors_K)
    advantage_X = np.zeros_like(return_X)
    order_X = np.argsort(anchor_X, kind="stable")
    edges = np.flatnonzero(np.diff(anchor_X[order_X])) + 1
    for members in np.split(order_X, edges):
        advantage_X[members] = _relative(return_X[members], estimate)
    return np.split(advantage_X, np.cumsum([len(r) for r in returns_K])[:-1])


def _relative(value_G: Float[np.ndarray, "G"], estimate: Estimate) -> Float[np.ndarray, "G"]:
    return np.zeros_like(value_G) if zero_variance(value_G) else estimate(value_G)
