"""Advantages over the whole batch: REINFORCE with a baseline, and REINFORCE++ (2501.03262).

In: groups. Out: a `Credited` a survivor, the trajectory's advantage broadcast to its steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from jaxagent.credit.group import returns, survivors
from jaxagent.stage import Credit
from jaxagent.types import Credited, Group, Trajectory


def reinforce(*, baseline: float | None = None) -> Credit:
    """A_i = R_i - b; without a given b it is the mean return of the batch."""

    def credit(groups: Sequence[Group]) -> list[Credited]:
        alive = [trajectory for group in groups for trajectory in survivors(group)]
        reward_N = returns(alive)
        b = baseline if baseline is not None else float(reward_N.mean()) if alive else 0.0
        return _broadcast(alive, reward_N - b)

    return credit


def reinforce_pp(*, group_baseline: bool = False, eps: float = 1e-8) -> Credit:
    """A = (x - mu) / sqrt(var + eps), mu and Bessel-corrected var over all trained tokens of the batch.

    x is the return, or with `group_baseline` the return minus its group's mean. Long trajectories weigh more
    in mu: that is the token-level definition. Lengths 2 and 4, R = 1 and 0: mu 1/3, var .26667,
    A = [1.29099, -.64550].
    """

    def credit(groups: Sequence[Group]) -> list[Credited]:
        alive, values = [], []
        for group in groups:
            members = survivors(group)
            reward_G = returns(members)
            alive += members
            values.append(reward_G - reward_G.mean() if group_baseline and members else reward_G)
        value_N = np.concatenate(values) if values else np.zeros(0)
        token_N = np.array([sum(step.ids_T.size for step in t.steps) for t in alive], np.int64)
        return _broadcast(alive, whiten(value_N, token_N, eps=eps))

    return credit


def whiten(
    value_N: Float[np.ndarray, "N"], token_N: Int[np.ndarray, "N"], *, eps: float = 1e-8
) -> Float[np.ndarray, "N"]:
    """Whiten values that each stand for `token_N` equal tokens. All 0 below two tokens."""
    total = int(token_N.sum())
    if total < 2:
        return np.zeros_like(value_N)
    mean = (value_N * token_N).sum() / total
    var = (token_N * (value_N - mean) ** 2).sum() / (total - 1)
    return (value_N - mean) / np.sqrt(var + eps)


def _broadcast(alive: Sequence[Trajectory], value_N: Float[np.ndarray, "N"]) -> list[Credited]:
    return [
        Credited(trajectory, np.full(len(trajectory.steps), value, np.float32))
        for trajectory, value in zip(alive, value_N, strict=True)
    ]
