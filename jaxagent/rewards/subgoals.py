"""Subgoals and potentials: reward on the way. In: a `Trajectory`. Out: rewards per step, or their capped sum.

    Subgoal("logged in", observation=r"access_token")       reached at the first step whose observation matches

A subgoal pays once, at the step that reaches it (a latch), and all of them together stay below a cap: the outcome keeps
at least half of what an episode can earn. `shaped` is the potential-based form, which leaves the best policy the best
one (Ng et al., 1999): F_k = gamma Phi(s_{k+1}) - Phi(s_k), with Phi 0 at the end of an episode.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from jaxagent.errors import ConfigError
from jaxagent.rewards.returns import StepTerm
from jaxagent.stage import Reward
from jaxagent.types import Step, Trajectory


@dataclass(frozen=True)
class Subgoal:
    """Reached by a step that did not fail and whose observation, and whose message, match (regular expressions)."""

    name: str
    observation: str = ""
    message: str = ""
    weight: float = 0.1

    def __post_init__(self) -> None:
        if not (self.observation or self.message):
            raise ConfigError(
                f"subgoal {self.name!r}: give a pattern for the observation, the message, or both"
            )
        for pattern in (self.observation, self.message):
            try:
                re.compile(pattern)
            except re.error as exc:
                raise ConfigError(
                    f"subgoal {self.name!r}: {pattern!r} is no regular expression: {exc}"
                ) from exc

    def reached(self, step: Step) -> bool:
        if step.exec_status.failed:
            return False
        return bool(
            re.search(self.observation, step.observation_after) and re.search(self.message, step.text)
        )


def subgoal_rewards(
    trajectory: Trajectory, subgoals: Sequence[Subgoal], *, cap: float, in_order: bool = False
) -> Float[np.ndarray, "K"]:
    """Reward per step, [K]: the weights of the subgoals first reached there, until `cap` is spent.

    in_order: a subgoal counts only when all before it were reached. Three of five at .1 with cap .3 -> sum .3.
    """
    reward_K = np.zeros(len(trajectory.steps), np.float32)
    open_goals, left = list(subgoals), cap
    for k, step in enumerate(trajectory.steps):
        while (goal := _next(open_goals, step, in_order)) is not None:
            open_goals.remove(goal)
            paid = min(goal.weight, left)
            reward_K[k] += paid
            left -= paid
    return reward_K


def _next(open_goals: Sequence[Subgoal], step: Step, in_order: bool) -> Subgoal | None:
    candidates = open_goals[:1] if in_order else open_goals
    return next((goal for goal in candidates if goal.reached(step)), None)


def subgoals(goals: Sequence[Subgoal], *, cap: float = 0.3, in_order: bool = False) -> Reward:
    """Their capped sum, as a term beside the outcome. Step-level estimators take `subgoal_terms` instead."""
    by_step = subgoal_terms(goals, cap=cap, in_order=in_order)
    return lambda trajectory: float(by_step(trajectory).sum())


def subgoal_terms(goals: Sequence[Subgoal], *, cap: float = 0.3, in_order: bool = False) -> StepTerm:
    """`subgoal_rewards` of these subgoals."""
    _check(goals, cap)
    return lambda trajectory: subgoal_rewards(trajectory, goals, cap=cap, in_order=in_order)


def progress_shaping(
    goals: Sequence[Subgoal], *, gamma: float, cap: float = 0.3, in_order: bool = False
) -> StepTerm:
    """Potential-based rewards F_k, [K], with Phi(s_k) the weight of the subgoals reached before step k.

    Returns of the same gamma then hold -Phi(s_k) at step k: a subgoal pays where it is reached and is owed from there
    on, so that what is worth most is unchanged.
    """
    _check(goals, cap)

    def by_step(trajectory: Trajectory) -> Float[np.ndarray, "K"]:
        reached_K = np.cumsum(
            subgoal_rewards(trajectory, goals, cap=cap, in_order=in_order), dtype=np.float64
        )
        potential = [0.0, *reached_K[:-1], 0.0] if reached_K.size else [0.0]
        return potential_rewards(potential, gamma=gamma)

    return by_step


def _check(goals: Sequence[Subgoal], cap: float) -> None:
    if cap <= 0 or any(goal.weight <= 0 for goal in goals):
        raise ConfigError(f"subgoals: cap={cap} and all weights must be above 0")


Potential = Callable[[Trajectory, int], float]
"""Phi of the state before step k, 0 <= k < K. The state after the last step has potential 0."""


def shaped(trajectory: Trajectory, potential: Potential, *, gamma: float) -> Float[np.ndarray, "K"]:
    """Potential-based reward per step, [K]. Its discounted sum is -Phi(s_0): no policy gains by it."""
    before_K = [potential(trajectory, k) for k in range(len(trajectory.steps))]
    return potential_rewards([*before_K, 0.0], gamma=gamma)


def potential_rewards(potential: Sequence[float], *, gamma: float) -> Float[np.ndarray, "K"]:
    """gamma Phi_{k+1} - Phi_k. gamma .99, Phi 0, .25, .25, 1 -> .2475, -.0025, .74; discounted sum gamma^3 * 1 - 0."""
    phi = np.asarray(potential, np.float64)
    return (gamma * phi[1:] - phi[:-1]).astype(np.float32)
