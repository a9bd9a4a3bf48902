"""What an iteration's rollouts gave: groups, and metrics that are counted again whenever rounds are put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jaxagent.plan import Plan
from jaxagent.rollout.stats import rollout_metrics
from jaxagent.stage import FollowUp
from jaxagent.types import Group, Metrics


@dataclass(frozen=True)
class Collected:
    """An iteration's groups, and what collecting them looked like."""

    groups: tuple[Group, ...]
    metrics: Metrics


def joined(first: Collected, second: Collected) -> Collected:
    """Two rounds of one iteration."""
    groups = first.groups + second.groups
    counts = {
        name: int(first.metrics[f"rollout/{name}"] + second.metrics[f"rollout/{name}"])
        for name in ("submitted", "retries")
    }
    return Collected(groups, rollout_metrics(groups, **counts))


def marked(collected: Collected, weights: str) -> Collected:
    """Trajectories that other weights than the policy's have sampled say so in `extra["weights"]`."""
    groups = tuple(
        replace(
            group,
            trajectories=tuple(replace(t, extra={**t.extra, "weights": weights}) for t in group.trajectories),
        )
        for group in collected.groups
    )
    return replace(collected, groups=groups)


def renewed(collected: Collected, groups: Sequence[Group], more: Metrics) -> Collected:
    """The same round with other groups of the same episodes, counted again, and more metrics."""
    names = ("submitted", "retries", "held_in", "held_out")
    counts = {name: int(collected.metrics.get(f"rollout/{name}", 0)) for name in names}
    return Collected(tuple(groups), {**rollout_metrics(groups, **counts), **more})


def collected_with(
    follow_up: FollowUp | None, plans: Sequence[Plan], play: Callable[[Sequence[Plan], int], Collected]
) -> Collected:
    """An iteration's rounds: its plans, then what `follow_up` asks for, until it asks for nothing.

    play: (plans, number of the round).
    """
    collected = play(plans, 0)
    number = 0
    while follow_up is not None and (more := follow_up(collected.groups)):
        number += 1
        collected = joined(collected, play(more, number))
    return collected
