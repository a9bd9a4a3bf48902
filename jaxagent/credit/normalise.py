"""Returns put on one scale before credit, within each task's group or over the batch (RAGEN, 2504.20073).

    R_G = [1, 0, 0, 0]      mean [.75, -.25, -.25, -.25]      mean_std [1.5, -.5, -.5, -.5] (ddof 1)

What is logged, and what filters of groups read, stays the return itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from jaxtyping import Float

from jaxagent.credit.group import group_mean, group_std, returns, survivors, zero_variance
from jaxagent.stage import Credit
from jaxagent.types import Credited, Group

How = Literal["identity", "mean", "mean_std", "asym_clip"]
By = Literal["group", "batch"]

LOW, HIGH = -1.0, 3.0
z_score = group_std()

METHODS: Mapping[str, Callable[[Float[np.ndarray, "N"]], Float[np.ndarray, "N"]]] = {
    "identity": lambda reward_N: reward_N,
    "mean": group_mean,
    "mean_std": z_score,
    "asym_clip": lambda reward_N: np.clip(z_score(reward_N), LOW, HIGH),
}


def normalised(reward_N: Float[np.ndarray, "N"], how: How) -> Float[np.ndarray, "N"]:
    """Returns that do not differ say nothing: 0, unless they are left as they are."""
    if how == "identity":
        return reward_N
    return np.zeros_like(reward_N) if zero_variance(reward_N) else METHODS[how](reward_N)


def on_normalised(credit: Credit, *, how: How, by: By = "group") -> Credit:
    """`credit` of groups whose returns are normalised. Takes a credit, returns a credit."""
    if how == "identity":
        return credit

    def whole(groups: Sequence[Group]) -> list[Credited]:
        alive = [survivors(group) for group in groups]
        rewards = [returns(members) for members in alive]
        if by == "batch":
            every_N = normalised(np.concatenate([np.zeros(0), *rewards]), how)
            rewards = np.split(every_N, np.cumsum([len(r) for r in rewards])[:-1]) if rewards else []
        else:
            rewards = [normalised(reward_G, how) for reward_G in rewards]
        return credit(
            [
                replace(
                    group,
                    trajectories=tuple(
                        replace(t, reward=float(r)) for t, r in zip(members, reward_G, strict=True)
                    ),
                )
                for group, members, reward_G in zip(groups, alive, rewards, strict=True)
            ]
        )

    return whole
