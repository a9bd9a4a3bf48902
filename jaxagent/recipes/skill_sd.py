"""Skill-SD: skill-conditioned self-distillation (arXiv 2604.10674). GRPO, and a teacher that knows a skill.

    teacher  = the same network with a skill of this task in its prompt, scoring the student's own tokens
    l_t      = log p_student(y_t | x) - log p_teacher(y_t | x + skill)
    L        = L_GRPO + lambda * (1/N) sum of rho_t (e^-l_t - 1 + l_t),    rho_t = p / sg(p_old), differentiable

The importance weight makes the gradient that of the reverse KL(student || teacher). Students never see a skill. Skills
come from a summariser that reads finished episodes beside training; a task without a skill contributes GRPO only.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from pydantic import Field, model_validator

from jaxagent.auxlm.client import AuxBackend, AuxLimits, AuxLM, ScriptedBackend
from jaxagent.auxlm.endpoint import EndpointBackend, EndpointConfig
from jaxagent.batch.targets import policy_samples, seq_mean_token_mean, token_mean
from jaxagent.credit.group import group_std, per_group
from jaxagent.learn.terms import clipped_pg, reverse_kl_iw
from jaxagent.recipes.base import Materials
from jaxagent.recipes.policy import PolicyOptions, policy_recipe, policy_update, task_source
from jaxagent.recipes.rewards import returns_of
from jaxagent.skills.bank import SkillBank
from jaxagent.skills.prompt import full_text, workflow_text
from jaxagent.skills.source import SkillRules, SkillSource
from jaxagent.skills.summarise import SUMMARISE, SummariserPool, script_summary
from jaxagent.stage import Stage, Teacher, Term

TEXTS = {"full": full_text, "workflow": workflow_text}


class SkillSdOptions(PolicyOptions):
    """lambda_: weight of the distillation term. teacher: dynamic is the student at the start of the iteration.

    summariser: "script" extracts the steps that ran, without a language model; "endpoint" asks `endpoint_model` at
    `endpoint_url` (OpenAI-compatible; its key in the environment variable `endpoint_key_env`).
    skill_text: "workflow" shows code alone, for models that know nothing else.
    """

    lambda_: float = Field(0.001, ge=0)
    teacher: Literal["dynamic", "frozen"] = "dynamic"
    rho_max: float = Field(0.0, ge=0)
    ucb_c: float = Field(1.0, ge=0)
    buffer_max: int = Field(16, ge=1)
    skill_text: Literal["full", "workflow"] = "full"
    summariser: Literal["script", "endpoint"] = "script"
    endpoint_url: str = ""
    endpoint_model: str = ""
    endpoint_key_env: str = ""
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.2, gt=0)

    @model_validator(mode="after")
    def _endpoint(self) -> SkillSdOptions:
        if self.summariser == "endpoint" and not (self.endpoint_url and self.endpoint_model):
            raise ValueError("summariser='endpoint' needs endpoint_url and endpoint_model")
        return self


def stage(options: SkillSdOptions, materials: Materials) -> Stage:
    source = SkillSource(
        task_source(options, materials),
        SkillBank(options.buffer_max),
        SummariserPool(AuxLM(_backend(options), AuxLimits())),
        SkillRules(c=options.ucb_c, text=TEXTS[options.skill_text]),
    )
    distillation = reverse_kl_iw(rho_max=options.rho_max or None)
    return Stage(
        name=materials.name,
        source=source,
        iterations=options.iterations,
        reward=returns_of(options.reward),
        credit=per_group(group_std()),
        samples=partial(policy_samples, terms=("pg",), teacher_terms=("distill",)),
        terms={
            "pg": Term(clipped_pg(options.clip_low, options.clip_high), seq_mean_token_mean),
            "distill": Term(distillation, token_mean, options.lambda_),
        },
        teacher=Teacher(source.teacher, "current" if options.teacher == "dynamic" else "reference"),
        needs=("old",) if options.off_policy else (),
        sampling=materials.sampling,
        update=policy_update(options),
    )


def _backend(options: SkillSdOptions) -> AuxBackend:
    if options.summariser == "script":
        return ScriptedBackend({SUMMARISE.name: script_summary})
    return EndpointBackend(
        EndpointConfig(options.endpoint_url, options.endpoint_model, api_key_env=options.endpoint_key_env)
    )


RECIPE = policy_recipe(SkillSdOptions, stage)
