"""Skill-SD: skill-conditioned self-distillation (arXiv 2604.10674). GRPO, and a teacher that knows a skill.

    teacher  = the same network with a skill of this task in its prompt
    l_t      = log p_student(y_t | x) - log p_teacher(y_t | x + skill)
    L        = L_GRPO + lambda * (1/N) sum of rho_t (e^-l_t - 1 + l_t)       rho_t differentiable in its numerator

The importance weight makes the gradient that of the reverse KL(student || teacher). Skills come from a summariser that
reads finished episodes beside training; a task without a skill contributes GRPO only. Variants:

    sampling: student   y ~ student, plain prompt; the teacher scores them.  rho = p_student / p_student at the start
    sampling: teacher   y ~ teacher, skill in its prompt; the student scores them behind the plain prompt.
                        rho = p_student / p_teacher = e^l, in GRPO's ratio as well
    teacher: dynamic    its weights are the student's at the start of the iteration
    teacher: frozen     those of the start of the stage
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from pydantic import Field, model_validator

from jaxagent.batch.targets import policy_samples, seq_mean_token_mean, token_mean
from jaxagent.chat.render import Renderer
from jaxagent.credit.group import group_std, per_group
from jaxagent.learn.distill import distillation
from jaxagent.learn.terms import clipped_pg
from jaxagent.recipes.base import Materials
from jaxagent.recipes.policy import PG, policy_recipe, policy_update
from jaxagent.recipes.rewards import returns_of
from jaxagent.recipes.skill_options import SkillOptions, skill_source, skill_ways
from jaxagent.skills.plain import behind_plain_prompts
from jaxagent.stage import Stage, Teacher, TeacherWeights, Term
from jaxagent.types import Credited, Sample

WEIGHTS: dict[str, TeacherWeights] = {"dynamic": "current", "frozen": "reference"}
STREAMS = {"dynamic": "old", "frozen": "reference"}  # of the teacher's weights, where the teacher samples


class SkillSdOptions(SkillOptions):
    """lambda_: weight of the distillation term. rho_max: cap of its importance weight; 0 is none, and exact."""

    lambda_: float = Field(0.001, ge=0)
    sampling: Literal["student", "teacher"] = "student"
    teacher: Literal["dynamic", "frozen"] = "dynamic"
    rho_max: float = Field(0.0, ge=0)
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.2, gt=0)

    @model_validator(mode="after")
    def _plain_is_known(self) -> SkillSdOptions:
        if self.sampling == "teacher" and (self.replay is not None or self.rollouts_from):
            raise ValueError(
                "sampling=teacher puts its tokens behind the plain prompt, and stored rollouts do not say what it was; "
                "drop replay and rollouts_from, or let the student sample"
            )
        return self


def stage(options: SkillSdOptions, materials: Materials) -> Stage:
    weights = WEIGHTS[options.teacher]
    off = options.sampling == "teacher"
    source = skill_source(options, materials, in_rollouts=off, weights=weights if off else "current")
    return Stage(
        name=materials.name,
        source=source,
        iterations=options.iterations,
        reward=returns_of(options.reward),
        credit=per_group(group_std()),
        samples=(
            partial(_as_the_student, renderer=materials.renderer, sampled_by=STREAMS[options.teacher])
            if off
            else _samples
        ),
        terms={
            PG: Term(clipped_pg(options.clip_low, options.clip_high), seq_mean_token_mean),
            "distill": Term(distillation(rho_max=options.rho_max or None), token_mean, options.lambda_),
        },
        teacher=None if off else Teacher(source.teacher, weights),
        needs=_needs(options),
        sampling=materials.sampling,
        update=policy_update(options),
        lends=off and weights != "current",
        ways=skill_ways(options, source),
        shown={"skills": source.bank.state},
    )


def _needs(options: SkillSdOptions) -> tuple[str, ...]:
    """Streams to score as sampled, skill and all: the teacher's, if it samples, is the old policy of its tokens."""
    if options.sampling == "teacher":
        return ("old", "reference") if options.teacher == "frozen" else ("old",)
    return ("old",) if options.off_policy else ()


def _samples(credited: Sequence[Credited]) -> list[Sample]:
    return policy_samples(credited, terms=(PG,), teacher_terms=("distill",))


def _as_the_student(credited: Sequence[Credited], *, renderer: Renderer, sampled_by: str) -> list[Sample]:
    return _samples(behind_plain_prompts(credited, renderer, sampled_by=sampled_by))


RECIPE = policy_recipe(SkillSdOptions, stage)
