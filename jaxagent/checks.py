"""What must hold in every run, checked while it runs: nothing leaks into the loss, sampler and trainer agree.

In: groups with a "behaviour" stream (sampler) and an "old" stream (trainer). Raises ParityError in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from jaxagent.errors import ParityError
from jaxagent.rollout.review import REOPENED
from jaxagent.types import Group, Metrics, Segment


@dataclass(frozen=True)
class Tolerance:
    """Largest mean and largest single |sampler - trainer| log-prob difference, in nats."""

    mean: float
    single: float


TOLERANCES = {"float32": Tolerance(1e-4, 5e-3), "bfloat16": Tolerance(0.05, 1.5)}


def own(groups: Sequence[Group]) -> list[Group]:
    """The groups without what other weights than the policy's have sampled, or the policy behind another opening:
    nothing has to agree there."""
    apart = {"weights", REOPENED}
    return [
        replace(group, trajectories=tuple(t for t in group.trajectories if apart.isdisjoint(t.extra)))
        for group in groups
    ]


def segments_of(groups: Sequence[Group]) -> list[Segment]:
    return [s for group in groups for trajectory in group.trajectories for s in trajectory.segments]


def mismatch_metrics(groups: Sequence[Group]) -> Metrics:
    """Sampler against trainer on the sampled tokens: mean and largest difference, and the k3 estimate of the KL."""
    difference = _differences(segments_of(groups))
    if not len(difference):
        return {}
    k3 = np.exp(np.clip(difference, -20, 20)) - 1 - difference
    return {
        "mismatch/abs_mean": float(np.abs(difference).mean()),
        "mismatch/abs_max": float(np.abs(difference).max()),
        "mismatch/kl": float(k3.mean()),
    }


def check_parity(groups: Sequence[Group], tolerance: Tolerance) -> Metrics:
    """Compare the first rollouts of a run; names the worst token when decoder and trainer disagree."""
    segments = segments_of(groups)
    metrics = mismatch_metrics(groups)
    if not metrics:
        return {}
    if metrics["mismatch/abs_mean"] > tolerance.mean or metrics["mismatch/abs_max"] > tolerance.single:
        worst = max(segments, key=lambda segment: np.abs(_differences([segment])).max(initial=0.0))
        difference_T = np.where(worst.mask_T, worst.logprobs["old"] - worst.logprobs["behaviour"], 0.0)
        t = int(np.abs(difference_T).argmax())
        raise ParityError(
            f"decoder and trainer disagree before any update: mean |difference| {metrics['mismatch/abs_mean']:.2g} "
            f"(limit {tolerance.mean:g}), largest {metrics['mismatch/abs_max']:.2g} (limit {tolerance.single:g}) at "
            f"token {t} (id {int(worst.ids_T[t])}): sampler {worst.logprobs['behaviour'][t]:.4f}, trainer "
            f"{worst.logprobs['old'][t]:.4f}. Look at dtypes, temperature and weight hand-off"
        )
    return metrics


def _differences(segments: Sequence[Segment]) -> np.ndarray:
    """trainer - sampler of every sampled token (token 0 is never scored)."""
    parts = [np.zeros(0, np.float32)]
    for segment in segments:
        mask_T = segment.mask_T.copy()
        mask_T[:1] = False
        parts.append((segment.logprobs["old"] - segment.logprobs["behaviour"])[mask_T])
    return np.concatenate(parts)
