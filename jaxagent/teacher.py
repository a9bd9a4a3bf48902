"""Teacher log-probs: the same action tokens scored under another context and/or other weights.

In: credited trajectories and a `Teacher`. Out: the same trajectories with a "teacher" stream on every segment that
has a teacher; the others are left without one, and their tokens stay out of the distillation term.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxagent.chat.render import Renderer
from jaxagent.learner import Learner
from jaxagent.rollout.review import carry_back, review
from jaxagent.stage import Teacher
from jaxagent.types import Credited, Segment


def taught(
    credited: Sequence[Credited], teacher: Teacher | None, learner: Learner, renderer: Renderer
) -> Sequence[Credited]:
    """Add the teacher's stream; without a teacher, or where it has no prompt, nothing changes."""
    if teacher is None:
        return credited
    prompts = [teacher.prompt(item.trajectory) for item in credited]
    reviewed: list[Segment] = []
    for item, prompt in zip(credited, prompts):
        if prompt is not None:
            reviewed += review(item.trajectory, prompt, renderer)
    scored = iter(learner.score_segments(reviewed, weights=teacher.weights))
    out = []
    for item, prompt in zip(credited, prompts):
        if prompt is None:
            out.append(item)
            continue
        segments = tuple(
            replace(segment, logprobs={**segment.logprobs, "teacher": carry_back(next(scored), segment)})
            for segment in item.trajectory.segments
        )
        out.append(replace(item, trajectory=replace(item.trajectory, segments=segments)))
    return out
