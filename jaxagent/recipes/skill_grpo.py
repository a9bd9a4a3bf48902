"""Skill-augmented GRPO: the student itself has a skill in its prompt while it trains. A baseline of Skill-SD.

    y ~ student(. | x + skill)     A_i = (R_i - mean) / std of the group     clipped ratio under the same prompt

Skills are those of Skill-SD (2604.10674): a buffer for each task, UCB, a summariser beside training; a task without a
skill is played plainly. Evaluations play plain prompts: nothing of a bank is there for a new task, which is where this
method loses against Skill-SD.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from jaxagent.batch.targets import policy_samples, seq_mean_token_mean
from jaxagent.credit.group import group_std, per_group
from jaxagent.learn.terms import clipped_pg
from jaxagent.recipes.base import Materials
from jaxagent.recipes.policy import PG, policy_recipe, policy_update
from jaxagent.recipes.rewards import returns_of
from jaxagent.recipes.skill_options import SkillOptions, refuse_played_already, skill_source, skill_ways
from jaxagent.stage import Stage, Term


class SkillGrpoOptions(SkillOptions):
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.2, gt=0)

    @model_validator(mode="after")
    def _plays(self) -> SkillGrpoOptions:
        refuse_played_already(self)
        return self


def stage(options: SkillGrpoOptions, materials: Materials) -> Stage:
    source = skill_source(options, materials, in_rollouts=True)
    return Stage(
        name=materials.name,
        source=source,
        iterations=options.iterations,
        reward=returns_of(options.reward),
        credit=per_group(group_std()),
        samples=policy_samples,
        terms={PG: Term(clipped_pg(options.clip_low, options.clip_high), seq_mean_token_mean)},
        needs=("old",) if options.off_policy else (),
        sampling=materials.sampling,
        update=policy_update(options),
        ways=skill_ways(options, source),
        shown={"skills": source.bank.state},
    )


RECIPE = policy_recipe(SkillGrpoOptions, stage)
