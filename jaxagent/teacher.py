"""Teacher log-probs: the same action tokens scored under another context and/or other weights.

In: credited trajectories and a `Teacher`. Out: the same trajectories with a "teacher" stream on every segment that
has a teacher; the others are left without one, and their tokens stay out of the distillation term.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from jaxagent.rollout.episode import Renderer
from jaxagent.rollout.review import carry_back, review
from jaxagent.stage import Teacher
from jaxagent.types import Credited, Metrics, Segment


@runtime_checkable
class Scorer(Protocol):
    """What teaching needs of the learner. row: tokens of a training row."""

    @property
    def row(self) -> int: ...

    def score_segments(
        self, segments: Sequence[Segment], *, weights: str = "current"
    ) -> list[Float[np.ndarray, "T"]]: ...


def taught(
    credited: Sequence[Credited], teacher: Teacher | None, learner: Scorer, renderer: Renderer
) -> tuple[Sequence[Credited], Metrics]:
    """Add the teacher's stream, and count. Nothing changes without a teacher, or where it has no prompt.

    A trajectory that is longer than a training row under the teacher's prompt goes without a teacher: the episode is
    trained as any other, the lesson is lost.
    """
    if teacher is None:
        return credited, {}
    reviewed: list[list[Segment]] = []
    too_long = 0
    for item in credited:
        prompt = teacher.prompt(item.trajectory)
        segments = [] if prompt is None else review(item.trajectory, prompt, renderer)
        fits = all(len(segment.ids_T) <= learner.row for segment in segments)
        too_long += not fits
        reviewed.append(segments if fits else [])
    scored = iter(
        learner.score_segments([s for segments in reviewed for s in segments], weights=teacher.weights)
    )
    out = [_with_stream(item, scored) if segments else item for item, segments in zip(credited, reviewed)]
    counts = {"teacher/taught": sum(bool(segments) for segments in reviewed), "teacher/too_long": too_long}
    return out, {name: float(count) for name, count in counts.items()}


def _with_stream(item: Credited, scored: Iterator[Float[np.ndarray, "T"]]) -> Credited:
    """The next of `scored` for each of the trajectory's segments, in order."""
    segments = tuple(
        replace(segment, logprobs={**segment.logprobs, "teacher": carry_back(next(scored), segment)})
        for segment in item.trajectory.segments
    )
    return replace(item, trajectory=replace(item.trajectory, segments=segments))
