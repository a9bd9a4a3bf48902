"""Means over episodes, for an environment's own metrics. In: trajectories. Out: `Metrics`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from jaxagent.types import Evaluation, Metrics, Trajectory


def verdict_means(
    trajectories: Sequence[Trajectory], measures: Mapping[str, Callable[[Evaluation], float]]
) -> Metrics:
    """Mean of each measure over the episodes that have a verdict; nothing where none has one.

    Lost episodes have none: they are counted elsewhere, and are no zeros here.
    """
    verdicts = [trajectory.evaluation for trajectory in trajectories if trajectory.evaluation is not None]
    if not verdicts:
        return {}
    return {name: fmean(measure(verdict) for verdict in verdicts) for name, measure in measures.items()}
