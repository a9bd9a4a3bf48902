"""Teacher log-probs: the same action tokens scored under another context and/or other weights.

In: credited trajectories and a `Teacher`. Out: the same trajectories with a "teacher" stream on every segment that
has a teacher; the others are left without one, and their tokens stay out of the distillation term.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from jaxagent.rollout.episode import Renderer
from jaxagent.rollout.review import carry_back, review
from jaxagent.scoring import TokenScores
from jaxagent.stage import Teacher
from jaxagent.types import Credited, Metrics, Segment

SAME = 1e-3  # nats; the log-prob of a token and the largest one are computed in different orders


@runtime_checkable
class Scorer(Protocol):
    """What teaching needs of the learner. row: tokens of a training row."""

    @property
    def row(self) -> int: ...

    def token_scores(self, segments: Sequence[Segment], *, weights: str = "current") -> list[TokenScores]: ...


def taught(
    credited: Sequence[Credited], teacher: Teacher | None, learner: Scorer, renderer: Renderer
) -> tuple[Sequence[Credited], Metrics]:
    """Add the teacher's stream, and count. Nothing changes without a teacher, or where it has no prompt.

    Where the teacher's context is longer than a training row, what is privileged in it is cut, never the trajectory;
    without any room for it the trajectory goes without a teacher.
    """
    if teacher is None:
        return credited, {}
    reviewed = [_reviewed(item, teacher, learner.row, renderer) for item in credited]
    segments = [segment for found in reviewed for segment in found.segments]
    scores = learner.token_scores(segments, weights=teacher.weights)
    counts: Metrics = {
        "teacher/taught": float(sum(bool(found.segments) for found in reviewed)),
        "teacher/too_long": float(sum(found.untaught for found in reviewed)),
        "teacher/cut": float(sum(found.cut for found in reviewed)),
    }
    counts |= _choices(scores, segments)
    scored = iter([score.logprob_T for score in scores])
    return [_with_stream(item, scored) if f.segments else item for item, f in zip(credited, reviewed)], counts


def _choices(scores: Sequence[TokenScores], segments: Sequence[Segment]) -> Metrics:
    """Entropy of the teacher, and how many of the student's tokens are the teacher's first choice."""
    masks = [_scored(segment) for segment in segments]
    tokens = sum(int(mask_T.sum()) for mask_T in masks)
    if not tokens:
        return {}
    pairs = list(zip(scores, masks, strict=True))
    entropy = sum(float(found.entropy_T[mask_T].sum()) for found, mask_T in pairs)
    first = [
        int((found.logprob_T[mask_T] >= found.best_T[mask_T] - SAME).sum())
        for found, mask_T in pairs
        if found.best_T is not None
    ]
    agreement = {"teacher/top1": sum(first) / tokens} if len(first) == len(pairs) else {}
    return {"teacher/entropy": entropy / tokens, **agreement}


class _Reviewed(NamedTuple):
    """A trajectory's segments in the teacher's context, or none; whether a lesson was cut, or had no room at all."""

    segments: list[Segment]
    cut: bool = False
    untaught: bool = False


def _reviewed(item: Credited, teacher: Teacher, row: int, renderer: Renderer) -> _Reviewed:
    trajectory = item.trajectory
    prompt = teacher.prompt(trajectory)
    if prompt is None or not trajectory.segments:
        return _Reviewed([])
    whole = review(trajectory, prompt, renderer)
    if all(len(segment.ids_T) <= row for segment in whole):
        return _Reviewed(whole)
    shorter = review(trajectory, prompt, renderer, room=row)
    return _Reviewed(shorter, cut=bool(shorter), untaught=not shorter)


def _scored(segment: Segment) -> np.ndarray:
    """Sampled tokens that a row before them scores."""
    mask_T = np.array(segment.mask_T, bool)
    mask_T[:1] = False
    return mask_T


def _with_stream(item: Credited, scored: Iterator[Float[np.ndarray, "T"]]) -> Credited:
    """The next of `scored` for each of the trajectory's segments, in order."""
    segments = tuple(
        replace(segment, logprobs={**segment.logprobs, "teacher": carry_back(next(scored), segment)})
        for segment in item.trajectory.segments
    )
    return replace(item, trajectory=replace(item.trajectory, segments=segments))
