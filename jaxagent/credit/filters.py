"""Which trajectories are trained on. Baselines have seen them all: a filter never changes an advantage.

A `Filter` runs after credit, on trajectories. What needs whole groups wraps a credit instead.
Filters keep the order of what they keep, may return an empty list (the iteration then makes no step), and
leave the divisor of the loss alone: aggregation with a nominal minibatch is batch/targets.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jaxagent.credit.group import ZERO_TOLERANCE, returns, survivors, whole_share, zero_variance
from jaxagent.errors import ConfigError
from jaxagent.stage import Credit, Filter
from jaxagent.types import Credited, Group, Trajectory


def magnitude(item: Credited) -> float:
    """The largest |A| of a trajectory's steps; 0 for a trajectory without steps."""
    return float(np.abs(item.advantage_K).max(initial=0.0))


def abs_min(threshold: float = 0.01, *, multiple: int = 1) -> Filter:
    """Drop trajectories whose |A| is below the threshold (LOOP).

    The number kept is rounded up to a multiple (the device count) with the largest |A| that would be dropped,
    as far as there are trajectories. None is kept if none reaches the threshold.
    """
    if threshold < 0 or multiple < 1:
        raise ConfigError(f"abs_min(threshold={threshold}, multiple={multiple}): expected >= 0 and >= 1")

    def keep(credited: Sequence[Credited]) -> list[Credited]:
        size_N = np.array([magnitude(item) for item in credited])
        passing = int((size_N >= threshold).sum())
        count = -(-passing // multiple) * multiple
        best = np.argsort(-size_N, kind="stable")[:count]
        return [credited[i] for i in sorted(best.tolist())]

    return keep


def positive_only(credited: Sequence[Credited]) -> list[Credited]:
    """Keep trajectories with a positive advantage on average over their steps."""
    return [item for item in credited if item.advantage_K.size and float(item.advantage_K.mean()) > 0]


def success_only(credited: Sequence[Credited]) -> list[Credited]:
    """Keep solved episodes (rejection-sampling fine-tuning). Reads the raw verdict, not the shaped return."""
    return [item for item in credited if item.trajectory.success]


def chain(*filters: Filter) -> Filter:
    """Apply filters from left to right."""

    def keep(credited: Sequence[Credited]) -> list[Credited]:
        kept = list(credited)
        for each in filters:
            kept = each(kept)
        return kept

    return keep


# --- filters of groups: they wrap a credit, for only a credit sees whole groups -----------------------------

Metric = Callable[[Trajectory], float]
Informative = Callable[[Group], bool]


def by_reward(trajectory: Trajectory) -> float:
    return trajectory.reward


def by_success(trajectory: Trajectory) -> float:
    return float(trajectory.success)


METRICS: Mapping[str, Metric] = {"reward": by_reward, "success": by_success}


def varies(metric: Metric = by_reward, *, tolerance: float = ZERO_TOLERANCE) -> Informative:
    """Whether the survivors of a group differ in the metric: only then does the group say what is better.

    Use `by_success` when a continuous shaping term is part of the return, which then always varies.
    """

    def informative(group: Group) -> bool:
        return not zero_variance(np.array([metric(t) for t in survivors(group)], np.float64), tolerance)

    return informative


def zero_std(
    credit: Credit,
    *,
    metric: Metric = by_reward,
    tolerance: float = ZERO_TOLERANCE,
    limit: int | None = None,
) -> Credit:
    """Leave out groups whose metric does not vary (DAPO), and those beyond the first `limit` that do.

    Takes a credit, returns a credit; a group is trained whole or not at all. Not for GVPO, whose failed steps learn
    from zero-variance groups too.
    """
    informative = varies(metric, tolerance=tolerance)
    return lambda groups: credit([group for group in groups if informative(group)][:limit])


def most_varied(credit: Credit, *, share: float = 0.25, rank_by: str = "std") -> Credit:
    """Keep the share of the groups with the largest standard deviation of R ("std_rev": the smallest) (StarPO-S).

    At least one group stays, ties go to the earlier group, and if no group varies all stay. Standard deviations
    (ddof 1) .577, 0, .05, .5 with share .25 -> the first group.
    """
    if not 0 < share <= 1 or rank_by not in ("std", "std_rev"):
        raise ConfigError(
            f"most_varied(share={share}, rank_by={rank_by!r}): expected a share in (0, 1], std or std_rev"
        )

    def keep(groups: Sequence[Group]) -> list[Credited]:
        alive = [group for group in groups if survivors(group)]
        std_P = np.array([spread(group) for group in alive])
        if not std_P.any():
            return credit(alive)
        best = np.argsort(-std_P if rank_by == "std" else std_P, kind="stable")
        chosen = set(best[: max(1, whole_share(share, len(alive)))].tolist())
        return credit([group for index, group in enumerate(alive) if index in chosen])

    return keep


def spread(group: Group) -> float:
    """Standard deviation (ddof 1) of the survivors' returns; 0 where they are equal or fewer than two."""
    reward_G = returns(survivors(group))
    return 0.0 if zero_variance(reward_G) else float(reward_G.std(ddof=1))
