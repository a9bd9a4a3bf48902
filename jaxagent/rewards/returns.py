"""Rewards of single episodes, lifted to the groups of an iteration. In: groups. Out: the same with returns set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from jaxagent.stage import Returns, Reward
from jaxagent.types import Group, Trajectory

PARTS = "reward_parts"  # key of `Trajectory.extra`: what a return is the sum of, by name
STEP_REWARDS = (
    "step_rewards"  # key of `Trajectory.extra`: the parts of it that belong to steps, one number a step
)

StepTerm = Callable[[Trajectory], Float[np.ndarray, "K"]]


def mapped(groups: Sequence[Group], change: Callable[[Trajectory], Trajectory]) -> list[Group]:
    """The groups with every trajectory changed."""
    return [replace(group, trajectories=tuple(map(change, group.trajectories))) for group in groups]


def each(reward: Reward) -> Returns:
    """R = reward(trajectory)."""
    return lambda groups: mapped(groups, lambda t: replace(t, reward=float(reward(t))))


def composed(
    outcome: Reward,
    terms: Mapping[str, Reward],
    *,
    step_terms: Mapping[str, StepTerm] | None = None,
    scale: float = 1.0,
    cap: float = 0.0,
) -> Returns:
    """R = scale * outcome + the sum of the terms, held within [-cap, cap] (0: no cap). Composite reward of F1.

    Every part is kept in the trajectory's `extra` and logged by its name. A sum of terms that reaches the outcome's
    size makes a policy that collects terms; the cap keeps it below. step_terms: terms that belong to steps; their sum
    per step is kept too, for credit that is finer than a trajectory.
    """

    def whole(trajectory: Trajectory) -> Trajectory:
        parts = {name: float(term(trajectory)) for name, term in terms.items()}
        by_step = {name: term(trajectory) for name, term in (step_terms or {}).items()}
        parts |= {name: float(reward_K.sum()) for name, reward_K in by_step.items()}
        shaping = sum(parts.values())
        if cap:
            shaping = min(cap, max(-cap, shaping))
        parts |= {"outcome": scale * float(outcome(trajectory)), "shaping": shaping}
        extra = {**trajectory.extra, PARTS: parts}
        if by_step:
            total_K = np.stack(list(by_step.values())).sum(axis=0, dtype=np.float64)
            extra[STEP_REWARDS] = tuple(float(reward) for reward in total_K)
        return replace(trajectory, reward=parts["outcome"] + shaping, extra=extra)

    return lambda groups: mapped(groups, whole)
