"""How old the policy was that sampled an episode, and what is too old to be trained on.

The lag of a step is the number of hand-offs to the decoder since the version that sampled it; an episode's is that of
its oldest step. Steps of one episode may differ: weights are handed over while it is being played.

    handed over 0 4 8 12, now at 12      a step of version 12 lags 0, of 8 lags 1, of 4 lags 2, of 0 lags 3
    max_lag 2                            kept      kept       kept      dropped
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from jaxagent.errors import ConfigError
from jaxagent.rewards.returns import mapped
from jaxagent.types import Dropped, Group, Metrics, Segment, Trajectory

STALE = "stale"


def lag(version: int, handed: Sequence[int]) -> int:
    """Hand-offs after `version`; `handed` ascends."""
    return len(handed) - bisect_right(handed, version)


def oldest(trajectory: Trajectory, handed: Sequence[int]) -> int:
    return max((lag(step.version, handed) for step in trajectory.steps), default=0)


def fresh(groups: Sequence[Group], handed: Sequence[int], *, max_lag: int) -> list[Group]:
    """The groups without episodes that lag more than `max_lag`: dropped and counted, and out of every baseline."""

    def keep(group: Group) -> Group:
        stale = [t for t in group.trajectories if oldest(t, handed) > max_lag]
        dropped = tuple(
            Dropped(t.task.task_id, t.rollout, STALE, f"a step lags {oldest(t, handed)} hand-offs")
            for t in stale
        )
        kept = tuple(t for t in group.trajectories if t not in stale)
        return replace(group, trajectories=kept, dropped=group.dropped + dropped)

    return [keep(group) for group in groups]


def refuse_lending(stage: str, max_lag: int) -> None:
    """Rollouts that run ahead need the decoder for the policy alone."""
    if max_lag:
        raise ConfigError(
            f"rollout.max_lag={max_lag}, but stage {stage} samples from other weights than the policy's, which the "
            "decoder cannot hold beside it; set rollout.max_lag to 0"
        )


def lag_metrics(groups: Sequence[Group], handed: Sequence[int]) -> Metrics:
    """Lags of the steps that are trained on."""
    lags = [lag(step.version, handed) for group in groups for t in group.trajectories for step in t.steps]
    return {"async/lag_mean": sum(lags) / len(lags), "async/lag_max": float(max(lags))} if lags else {}


def sampled_as_old(groups: Sequence[Group]) -> list[Group]:
    """Ratios are then those to the policy that sampled."""
    return mapped(groups, sampler_as_old)


def sampler_as_old(trajectory: Trajectory) -> Trajectory:
    """The sampler's own log-probs as the old ones: the bypass of recipes/mismatch.py."""

    def add(segment: Segment) -> Segment:
        return replace(segment, logprobs={**segment.logprobs, "old": segment.logprobs["behaviour"]})

    return replace(trajectory, segments=tuple(map(add, trajectory.segments)))
