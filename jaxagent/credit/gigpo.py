"""GiGPO: group-in-group advantages (arXiv 2505.10978). Steps from the same state are compared with each other.

    ret[i,k] = sum over j >= k of gamma^(j-k) r[i,j]
    A[i,k]   = A_E[i] + w (ret[i,k] - mean of its anchor group)            "mean"; "mean_std" divides both by their std

An anchor group holds the steps of one task's rollouts whose state before the message (`Step.anchor`) is the same; a
state seen once has no step advantage. The first state of a task is always shared. Rewards are the environment's own,
step by step, or the return, paid at the last step but for what belongs to a step (rewards/step_rewards.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from jaxagent.credit.group import (
    SINGLETON,
    Estimate,
    group_mean,
    group_std,
    survivors,
    zero_variance,
)
from jaxagent.credit.similar import StateIds
from jaxagent.errors import ConfigError, RolloutError
from jaxagent.rewards.step_rewards import REWARDS, Rewards, discounted
from jaxagent.stage import Credit
from jaxagent.types import Credited, Group, Metrics, Step, Trajectory

Mode = Literal["mean", "mean_std"]
EpisodeUnit = Literal["trajectories", "steps"]


def gigpo(
    *,
    gamma: float = 0.95,
    w: float = 1.0,
    mode: Mode = "mean_std",
    rewards: Rewards = "outcome",
    similarity: float = 0.0,
    episode_unit: EpisodeUnit = "trajectories",
    singleton: str = "zero",
) -> Credit:
    """Episode advantage plus w times step advantage. w=0 is GRPO ("mean_std") or its mean-only form.

    similarity:   0 compares states by equality; above, a state joins the first cluster whose first member is at least
                  as similar (0.95 is usual; credit/similar.py).
    episode_unit: what the mean and std of A_E are over: the paper's trajectories, or steps, as in the authors' code,
                  where a long episode counts more. Returns 10, 0, 10 of 3, 3 and 2 steps: mean 6.667 or 6.25.
    singleton:    A_E of a group's only survivor: "zero", "raw" (its return), or "drop" (it is left out).
    """
    if not 0 <= gamma <= 1 or w < 0 or not 0 <= similarity <= 1:
        raise ConfigError(
            f"gigpo(gamma={gamma}, w={w}, similarity={similarity}): expected gamma and similarity in [0, 1], w >= 0"
        )
    if singleton not in SINGLETON:
        raise ConfigError(f"singleton={singleton!r}; known policies: {', '.join(SINGLETON)}")
    estimate = group_std(ddof=1) if mode == "mean_std" else group_mean
    reward_steps = REWARDS[rewards]

    def on_group(alive: Sequence[Trajectory]) -> list[Credited]:
        rewards_K = [reward_steps(trajectory) for trajectory in alive]
        return_G = np.array([reward_K.sum() for reward_K in rewards_K])
        if not np.isfinite(return_G).all():
            raise RolloutError(f"task {alive[0].task.task_id!r} has a return that is not finite: {return_G}")
        count_G = np.array([reward_K.size for reward_K in rewards_K]) if episode_unit == "steps" else None
        alone = return_G.size == 1 and singleton == "raw"
        episode_G = return_G if alone else episode_advantages(return_G, estimate, count_G)
        anchors_K = anchor_ids([trajectory.steps for trajectory in alive], similarity=similarity)
        step_K = step_advantages([discounted(r, gamma) for r in rewards_K], anchors_K, estimate)
        measured = _measured(episode_G, step_K, anchors_K)
        return [
            Credited(trajectory, (episode + w * advantage_K).astype(np.float32), measured=measured)
            for trajectory, episode, advantage_K in zip(alive, episode_G, step_K)
        ]

    def credit(groups: Sequence[Group]) -> list[Credited]:
        alive = [survivors(group) for group in groups]
        fewest = 2 if singleton == "drop" else 1
        return [item for members in alive if len(members) >= fewest for item in on_group(members)]

    return credit


def _measured(
    episode_G: Float[np.ndarray, "G"],
    step_K: Sequence[Float[np.ndarray, "_"]],
    anchors_K: Sequence[Int[np.ndarray, "_"]],
) -> Metrics:
    """Of one group: states a step, the share of steps whose state is shared, and the size of both advantages."""
    size_A = np.bincount(np.concatenate(anchors_K))
    steps = int(size_A.sum())
    if not steps:
        return {}
    return {
        "gigpo/states": size_A.size / steps,
        "gigpo/shared_frac": float(size_A[size_A > 1].sum()) / steps,
        "gigpo/largest_state": float(size_A.max()),
        "gigpo/episode_abs": float(np.abs(episode_G).mean()),
        "gigpo/step_abs": float(np.abs(np.concatenate(step_K)).mean()),
    }


def episode_advantages(
    return_G: Float[np.ndarray, "G"], estimate: Estimate, count_G: Int[np.ndarray, "G"] | None = None
) -> Float[np.ndarray, "G"]:
    """The estimate over trajectories, or over `count_G` copies of each; 0 without variance, or without a step."""
    if count_G is None:
        return _relative(return_G, estimate)
    advantage_X = _relative(np.repeat(return_G, count_G), estimate)
    first_G = np.cumsum(count_G) - count_G
    return np.array([advantage_X[i] if n else 0.0 for i, n in zip(first_G, count_G)])


def anchor_ids(episodes: Sequence[Sequence[Step]], *, similarity: float) -> list[Int[np.ndarray, "_"]]:
    """A number for the state before each step; equal numbers are compared. Linear in the steps without similarity."""
    number = StateIds(similarity)
    return [
        np.array([number(step.anchor or step.observation_before) for step in steps], int)
        for steps in episodes
    ]


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
