"""Token streams that a stage asks for before credit, added to the segments of an iteration's groups.

In: groups, names of streams, and what scores segments (the learner). Out: the same groups, each segment with a [T]
array of every name in `Segment.logprobs`, 0 where there is nothing:

    old        log-prob of each sampled token under the present parameters
    value      value of the state before each sampled token, under the present parameters
    bootstrap  at the last token of an episode that its budget cut: the value of the state after it
    reference  log-prob under the parameters of that name, and so with every other name

Streams of the same parameters share one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from jaxagent.errors import ConfigError
from jaxagent.types import Group, Segment, Status, Trajectory

CURRENT = ("old", "value", "bootstrap")
CUT = (Status.STEP_LIMIT, Status.LENGTH)  # ended by a budget, not by the policy


class TokenScores(NamedTuple):
    """Log-prob and entropy at every sampled token of one segment, 0 elsewhere. value_T: None without a value head.

    best_T: log-prob of the likeliest token in its place.
    """

    logprob_T: Float[np.ndarray, "T"]
    entropy_T: Float[np.ndarray, "T"]
    value_T: Float[np.ndarray, "T"] | None = None
    best_T: Float[np.ndarray, "T"] | None = None


@runtime_checkable
class Scorer(Protocol):
    def __call__(self, segments: Sequence[Segment], *, weights: str) -> list[TokenScores]: ...


def add_streams(groups: Sequence[Group], streams: Sequence[str], score: Scorer) -> list[Group]:
    """One pass for each set of parameters that the streams name."""
    passes: dict[str, list[str]] = {}
    for stream in streams:
        passes.setdefault("current" if stream in CURRENT else stream, []).append(stream)
    groups = list(groups)
    for weights, names in passes.items():
        groups = _one_pass(groups, names, score, weights)
    return groups


def _one_pass(groups: Sequence[Group], names: Sequence[str], score: Scorer, weights: str) -> list[Group]:
    ends = "bootstrap" in names
    asked = [
        _ended(segment) if ends and _is_cut(trajectory, segment) else segment
        for group in groups
        for trajectory in group.trajectories
        for segment in trajectory.segments
    ]
    found = iter(score(asked, weights=weights))

    def add(segment: Segment) -> Segment:
        scores = next(found)
        added = {name: _stream(name, scores, len(segment.ids_T)) for name in names}
        return replace(segment, logprobs={**segment.logprobs, **added})

    def scored(trajectory: Trajectory) -> Trajectory:
        return replace(trajectory, segments=tuple(map(add, trajectory.segments)))

    return [replace(group, trajectories=tuple(map(scored, group.trajectories))) for group in groups]


def _stream(name: str, scores: TokenScores, length: int) -> Float[np.ndarray, "T"]:
    if name not in ("value", "bootstrap"):
        return scores.logprob_T[:length]
    if scores.value_T is None:
        raise ConfigError(
            f"a stage needs the token stream {name!r}, but the model has no value head; give its recipe a `critic` "
            "that says so (recipes/base.py)"
        )
    if name == "value":
        return scores.value_T[:length]
    after_T = np.zeros(length, np.float32)
    if len(scores.value_T) > length:
        after_T[-1] = scores.value_T[length]
    return after_T


def _is_cut(trajectory: Trajectory, segment: Segment) -> bool:
    return trajectory.status in CUT and segment is trajectory.segments[-1]


def _ended(segment: Segment) -> Segment:
    """The segment and a token after it, whose value is that of the state after the segment. Attention is causal: which
    token makes no difference."""
    return Segment(
        ids_T=np.append(segment.ids_T, segment.ids_T[-1:]),
        mask_T=np.append(segment.mask_T, True),
        step_T=np.append(segment.step_T, np.int32(-1)),
        logprobs={},
    )
