"""What an episode is worth that did not end by itself: out of steps, or out of context.

    evaluate   the verdict on the state that it left, as for any other
    zero       outcome 0 (LOOP's paper counts it as a failure)
    mask       its return counts in the baseline, its tokens are not trained on (DAPO's overlong filter)

In: a `Returns` or a `Reward`. Out: the same under one of these rules. The length penalties are in shaping.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import exp

from jaxagent.errors import ConfigError
from jaxagent.rewards.returns import Changed
from jaxagent.rewards.shaping import Unit, length
from jaxagent.stage import Returns, Reward
from jaxagent.types import Status, Trajectory

Cut = Callable[[Trajectory], bool]


def ended(*statuses: Status) -> Cut:
    """Whether an episode ended so, e.g. ended(Status.LENGTH)."""
    return lambda trajectory: trajectory.status in statuses


def longer(limit: int, unit: Unit) -> Cut:
    """Whether an episode ran out of context or is longer than the limit."""
    return lambda t: t.status is Status.LENGTH or length(t, unit) > limit


def masked(returns: Returns, *cuts: Cut) -> Returns:
    """The returns as they are; no token of a trajectory that one of `cuts` names is trained on."""

    def mark(trajectory: Trajectory) -> Trajectory:
        return replace(trajectory, masked=trajectory.masked or any(cut(trajectory) for cut in cuts))

    return Changed(returns, after=mark) if cuts else returns


def full_penalty(term: Reward, penalty: float, cut: Cut) -> Reward:
    """`term`, but -penalty for episodes that `cut` names: their context was filled by what they read."""
    return lambda trajectory: -penalty if cut(trajectory) else term(trajectory)


def exponential(outcome: Reward, *, start: int, tau: float, unit: Unit = "action_tokens") -> Reward:
    """R exp(-over / tau), over = units beyond `start`, at least 0: R 1, over 2, tau 2 -> .3679.

    Some texts call DAPO's overlong penalty exponential; DAPO's own is linear (shaping.py).
    """
    if start < 0 or tau <= 0:
        raise ConfigError(
            f"an exponential length factor with start={start}, tau={tau}: expected >= 0 and > 0"
        )
    return lambda t: outcome(t) * exp(-max(0, length(t, unit) - start) / tau)
