"""On-policy distillation: the student samples, a teacher scores the same tokens, and nothing else is learnt from.

    l_t = log p_student(y_t | x) - log p_teacher(y_t | x')        L = (1/N) sum of k(l_t)

    teacher      self        the student at the start of the iteration
                 frozen      the student at the start of the stage
                 ema         a moving average of the student
                 checkpoint  another network of the same tokens, from a folder
    context      skill       x' = x with a skill of the task (Skill-SD's bank), which the student does not see
                 none        x' = x; of use to a checkpoint alone, for the others are then the student itself
    estimator    see learn/distill.py. iw_k3, k2, k3+ and pg have the gradient of KL(student || teacher), k3_direct that
                 of KL(teacher || student)

The return is measured, and decides which skill teaches; no term reads it. Expected below GRPO on agents (2604.10674).
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from pydantic import Field, model_validator

from jaxagent.batch.targets import policy_samples, token_mean
from jaxagent.chat.tokenizer import Tokenizer, load_tokenizer
from jaxagent.credit.group import group_mean, per_group
from jaxagent.errors import ConfigError
from jaxagent.learn.distill import Estimator, distillation
from jaxagent.model.hf import check_weights, read_spec
from jaxagent.recipes.base import Materials
from jaxagent.recipes.policy import policy_recipe, policy_update, task_source
from jaxagent.recipes.rewards import returns_of
from jaxagent.recipes.skill_options import OF_BANK, SkillOptions, skill_source, skill_ways
from jaxagent.recipes.unread import refuse_unread
from jaxagent.skills.source import SkillSource
from jaxagent.stage import Source, Stage, Teacher, TeacherWeights, Term
from jaxagent.types import Prompt, Trajectory

WEIGHTS: dict[str, TeacherWeights] = {
    "self": "current",
    "frozen": "reference",
    "ema": "ema",
    "checkpoint": "checkpoint",
}


class OpdOptions(SkillOptions):
    """checkpoint: folder or hf:// name of the teacher. decay: of the average, once an iteration.

    rho_max: cap of iw_k3's importance weight; 0 is none. clip_low, clip_high: of estimator pg.
    """

    teacher: Literal["self", "frozen", "ema", "checkpoint"] = "self"
    context: Literal["skill", "none"] = "skill"
    checkpoint: str = ""
    decay: float = Field(0.99, ge=0, lt=1)
    estimator: Estimator = "iw_k3"
    rho_max: float = Field(0.0, ge=0)
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.2, gt=0)

    @model_validator(mode="after")
    def _teaches(self) -> OpdOptions:
        if bool(self.checkpoint) != (self.teacher == "checkpoint"):
            raise ValueError(
                f"teacher={self.teacher!r} with checkpoint={self.checkpoint!r}: a folder goes with teacher "
                "'checkpoint', and only with it"
            )
        if self.context == "none" and self.teacher != "checkpoint":
            raise ValueError(
                f"teacher={self.teacher!r} without a context begins as the student itself and teaches nothing; give it "
                "context 'skill', or another network as teacher 'checkpoint'"
            )
        refuse_unread(self, "decay", read=self.teacher == "ema", when="teacher: ema")
        refuse_unread(self, "rho_max", read=self.estimator == "iw_k3", when="estimator: iw_k3")
        refuse_unread(self, "clip_low", "clip_high", read=self.estimator == "pg", when="estimator: pg")
        refuse_unread(self, *OF_BANK, read=self.context == "skill", when="context: skill")
        if self.replay is not None:
            raise ValueError("replay weighs advantages, and distillation reads none; drop it")
        if self.entropy_coef or self.solved_nll:
            raise ValueError(
                f"entropy_coef={self.entropy_coef}, solved_nll={self.solved_nll}: they stand beside a policy term, and "
                "there is none here; drop them"
            )
        return self


def stage(options: OpdOptions, materials: Materials) -> Stage:
    if options.checkpoint:
        check_teacher(options.checkpoint, materials.renderer.tokenizer)
    skilled = options.context == "skill"
    source: Source = skill_source(options, materials) if skilled else task_source(options, materials)
    clip = (options.clip_low, options.clip_high)
    loss = distillation(options.estimator, rho_max=options.rho_max or None, clip=clip)
    return Stage(
        name=materials.name,
        source=source,
        iterations=options.iterations,
        reward=returns_of(options.reward),
        credit=per_group(group_mean),  # measured, as in any recipe; the one term reads no advantage
        samples=partial(policy_samples, terms=(), teacher_terms=("distill",)),
        terms={"distill": Term(loss, token_mean)},
        teacher=Teacher(
            source.teacher if isinstance(source, SkillSource) else same_prompt,
            WEIGHTS[options.teacher],
            options.decay,
            options.checkpoint,
        ),
        needs=("old",) if options.off_policy else (),
        sampling=materials.sampling,
        update=policy_update(options),
        ways=skill_ways(options, source) if isinstance(source, SkillSource) else {},
        shown={"skills": source.bank.state} if isinstance(source, SkillSource) else {},
    )


def same_prompt(trajectory: Trajectory) -> Prompt:
    return trajectory.prompt


def check_teacher(checkpoint: str, student: Tokenizer) -> None:
    """The teacher must be whole, and read the student's tokens as the student does."""
    theirs = load_tokenizer(checkpoint).backend.get_vocab(with_added_tokens=True)
    mine = student.backend.get_vocab(with_added_tokens=True)
    differ = sorted(token for token, number in mine.items() if theirs.get(token) != number)
    if differ:
        raise ConfigError(
            f"teacher checkpoint {checkpoint}: its tokenizer has other ids for {len(differ)} of the student's "
            f"{len(mine)} tokens ({', '.join(map(repr, differ[:3]))}); tokens can only be taught by a model of the "
            "same tokenizer"
        )
    check_weights(checkpoint, read_spec(checkpoint))


RECIPE = policy_recipe(OpdOptions, stage)
