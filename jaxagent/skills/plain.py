"""Episodes sampled with a skill in the prompt, as training data of the plain prompt: off-policy self-distillation.

In: credited trajectories. Out: those that opened with a skill have the same tokens behind the plain opening, id for id,
for the student to score; the others stay as they are. Whoever sampled, the teacher, is their "old" policy:
rho = p_student / p_teacher = e^l.

    sampled   s s p p   a a e o o o a a        student   p p   a a e o o o a a
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxagent.errors import RolloutError
from jaxagent.rollout.renderer import Renderer
from jaxagent.rollout.review import plain_prompt, review
from jaxagent.types import Credited, Segment


def behind_plain_prompts(
    credited: Sequence[Credited], renderer: Renderer, *, sampled_by: str = "old"
) -> list[Credited]:
    """`sampled_by`: the log-prob stream of the weights that sampled with a skill, scored under that skill's prompt."""
    return [_plain(item, renderer, sampled_by) for item in credited]


def _plain(item: Credited, renderer: Renderer, sampled_by: str) -> Credited:
    trajectory = item.trajectory
    plain = plain_prompt(trajectory)
    if plain == trajectory.prompt:
        return item
    if item.advantage_T:
        raise RolloutError(
            f"{trajectory.traj_id} has an advantage per token, which does not move with its tokens to another opening"
        )

    def taught(segment: Segment) -> Segment:
        teacher_T = segment.logprobs[sampled_by]
        return replace(segment, logprobs={**segment.logprobs, "old": teacher_T, "teacher": teacher_T})

    segments = tuple(taught(segment) for segment in review(trajectory, plain, renderer))
    return replace(item, trajectory=replace(trajectory, prompt=plain, segments=segments))
