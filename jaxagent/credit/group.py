"""Advantages from the returns of one group: who survives, what a degenerate group gets, and three baselines.

In: groups of finished trajectories whose `reward` is the return R. Out: one `Credited` a survivor, larger is
better. Not the job of this file: step-level shaping (gvpo.py), dropping trajectories (filters.py), losses.

    R_G = [1, .5, 0, 0]     mean .375
    group_mean              [ .625 ,  .125 , -.375 , -.375 ]
    leave_one_out           [ .8333,  .1667, -.5   , -.5   ]
    group_std(ddof=1)       [1.3056,  .2611, -.7833, -.7833]

All arithmetic is float64 on the host; advantages leave as float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from jaxtyping import Float

from jaxagent.errors import ConfigError, RolloutError
from jaxagent.stage import Credit
from jaxagent.types import Credited, Group, Trajectory

ZERO_TOLERANCE = 1e-6

Estimate = Callable[[Float[np.ndarray, "G"]], Float[np.ndarray, "G"]]
"""Returns of one group's survivors (n >= 2, not all equal) -> their advantages."""

StepEstimate = Callable[[Sequence[Trajectory]], Iterable[Float[np.ndarray, "..."] | float]]
"""One group's survivors -> per survivor an advantage per step [K], or a scalar that is broadcast."""

SINGLETON = ("zero", "raw", "drop")


def whole_share(share: float | int, n: int) -> int:
    """The share of n in whole numbers, rounded down: .29 of 100 is 29, though .29 * 100 is 28.999999999999996."""
    return int(share * n + 1e-9)


def survivors(group: Group) -> tuple[Trajectory, ...]:
    """The trajectories that count in a baseline: a cancelled or failed episode never does."""
    return tuple(t for t in group.trajectories if not t.status.dropped)


def returns(trajectories: Sequence[Trajectory]) -> Float[np.ndarray, "G"]:
    """Returns R as float64. A return that is not finite has no advantage."""
    for trajectory in trajectories:
        if not np.isfinite(trajectory.reward):
            raise RolloutError(
                f"trajectory {trajectory.traj_id!r} has return {trajectory.reward}; expected a finite "
                "number. Drop an episode whose reward cannot be computed, with a reason; do not score it."
            )
    return np.array([trajectory.reward for trajectory in trajectories], np.float64)


def zero_variance(value_G: Float[np.ndarray, "G"], tolerance: float = ZERO_TOLERANCE) -> bool:
    """True if the values are equal up to float noise. Empty and single groups have no variance either."""
    return value_G.size < 2 or float(value_G.max() - value_G.min()) <= tolerance


def step_advantage(item: Credited, method: str) -> Float[np.ndarray, "K"]:
    """The advantage per step that `method` changes; ConfigError where credit is per token, which it would lose."""
    if item.advantage_T:
        raise ConfigError(
            f"{method} changes an advantage per step, but the base credit gives {item.trajectory.traj_id!r} one per "
            f"token, which would be lost; take a base credit per trajectory or step, or drop {method}"
        )
    return item.advantage_K


# --- the estimators ---------------------------------------------------------------------------------------


def group_mean(reward_G: Float[np.ndarray, "G"]) -> Float[np.ndarray, "G"]:
    """A_i = R_i - mean(R). Dr. GRPO (Liu et al. 2025), GVPO."""
    return reward_G - reward_G.mean()


def leave_one_out(reward_G: Float[np.ndarray, "G"]) -> Float[np.ndarray, "G"]:
    """A_i = R_i - mean of the other R = n/(n-1) (R_i - mean(R)), n survivors. RLOO, LOOP (2502.01600)."""
    n = reward_G.size
    return (reward_G - reward_G.mean()) * (n / (n - 1))


def group_std(*, ddof: int = 1, eps: float = 1e-6, std_floor: float = 0.0) -> Estimate:
    """A_i = (R_i - mean(R)) / (max(std(R), std_floor) + eps). GRPO (2402.03300).

    ddof=1, eps=1e-6 is verl's convention; ddof=0, eps=1e-8 the population form.
    """
    if ddof not in (0, 1) or eps < 0 or std_floor < 0:
        raise ConfigError(
            f"group_std(ddof={ddof}, eps={eps}, std_floor={std_floor}): expected ddof 0 or 1, eps and "
            "std_floor not negative"
        )

    def estimate(reward_G: Float[np.ndarray, "G"]) -> Float[np.ndarray, "G"]:
        std = float(reward_G.std(ddof=ddof))
        return (reward_G - reward_G.mean()) / (max(std, std_floor) + eps)

    return estimate


# --- lifting to groups -------------------------------------------------------------------------------------


def per_group_steps(estimate: StepEstimate) -> Credit:
    """Lift a function of one group's survivors to all groups. Groups never see each other's trajectories."""

    def credit(groups: Sequence[Group]) -> list[Credited]:
        credited = []
        for group in groups:
            alive = survivors(group)
            if not alive:
                continue
            advantages = estimate(alive)
            for trajectory, advantage in zip(alive, advantages, strict=True):
                advantage_K = np.broadcast_to(
                    np.asarray(advantage, np.float32), (len(trajectory.steps),)
                ).copy()
                credited.append(Credited(trajectory, advantage_K))
        return credited

    return credit


def per_group(estimate: Estimate, *, singleton: str = "zero", tolerance: float = ZERO_TOLERANCE) -> Credit:
    """Lift an estimator on returns. The advantage of a trajectory is broadcast to its steps.

    A group whose returns are equal within `tolerance` gets exactly 0, before any division: float noise over
    a tiny std would otherwise become an advantage. A group with one survivor has no baseline: `zero` gives
    A = 0, `raw` gives A = R (verl's behaviour), `drop` removes the trajectory.
    """
    if singleton not in SINGLETON:
        raise ConfigError(f"singleton={singleton!r}; known policies: {', '.join(SINGLETON)}")

    def on_returns(alive: Sequence[Trajectory]) -> Float[np.ndarray, "G"]:
        reward_G = returns(alive)
        if reward_G.size == 1 and singleton == "raw":
            return reward_G
        if zero_variance(reward_G, tolerance):
            return np.zeros_like(reward_G)
        return estimate(reward_G)

    credit = per_group_steps(on_returns)
    if singleton != "drop":
        return credit
    return lambda groups: credit([group for group in groups if len(survivors(group)) > 1])
