"""Rewards of single episodes, lifted to the groups of an iteration. In: groups. Out: the same with returns set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from jaxagent.stage import Returns, Reward, close_held
from jaxagent.types import Group, Trajectory

PARTS = "reward_parts"  # key of `Trajectory.extra`: what a return is the sum of, by name
STEP_REWARDS = (
    "step_rewards"  # key of `Trajectory.extra`: the parts of it that belong to steps, one number a step
)

StepTerm = Callable[[Trajectory], Float[np.ndarray, "K"]]


def mapped(groups: Sequence[Group], change: Callable[[Trajectory], Trajectory]) -> list[Group]:
    """The groups with every trajectory changed."""
    return [replace(group, trajectories=tuple(map(change, group.trajectories))) for group in groups]


def _same(trajectory: Trajectory) -> Trajectory:
    return trajectory


@dataclass(frozen=True)
class Changed:
    """`Returns` with every trajectory changed before, or after, its return is set. Closes what it wraps (a judge)."""

    returns: Returns
    before: Callable[[Trajectory], Trajectory] = _same
    after: Callable[[Trajectory], Trajectory] = _same

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        return mapped(self.returns(mapped(groups, self.before)), self.after)

    def close(self) -> None:
        close_held(self.returns)


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
    floor: float | None = None,
) -> Returns:
    """R = scale * outcome + the sum of the terms, held within [-cap, cap] (0: no cap); R is at least `floor`.

    Every part is kept in the trajectory's `extra` and logged by its name. A sum of terms that reaches the outcome's
    size makes a policy that collects terms; the cap keeps it below. step_terms: terms that belong to steps; their sum
    per step is kept too, for credit that is finer than a trajectory.
    """

    def with_return(trajectory: Trajectory) -> Trajectory:
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
        whole = parts["outcome"] + shaping
        return replace(trajectory, reward=whole if floor is None else max(floor, whole), extra=extra)

    return lambda groups: mapped(groups, with_return)
