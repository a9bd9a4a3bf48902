"""LOOP: leave-one-out PPO (arXiv 2502.01600). Critic-free, reference-free, several clipped minibatches an iteration.

    A_i = R_i - mean of the other rollouts of the task            no division by a standard deviation
    J_i = mean over i's action tokens of min(rho A_i, clip(rho, 1/(1+eps), 1+eps) A_i)
    loss = -(1/M) sum over the minibatch of J_i                   M is the nominal minibatch size, also after filtering

R is the fraction of unit tests passed. Defaults are those of the released code for AppWorld with Qwen2.5-32B. Its
ablations: `ratio`, `norm: group_std` (RwNorm), `kl_in: advantage`, `positive_only`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field, model_validator

from jaxagent.batch.targets import constant_count, seq_mean_token_mean, turn_mean
from jaxagent.credit.filters import abs_min, chain, positive_only
from jaxagent.credit.group import group_std, leave_one_out, per_group
from jaxagent.learn.loss import Level
from jaxagent.learn.terms import clipped_pg
from jaxagent.recipes.base import Materials
from jaxagent.recipes.credit import StepCredit, credit_of
from jaxagent.recipes.kl import KlOptions, kl_stage
from jaxagent.recipes.policy import policy_recipe, task_source
from jaxagent.stage import Filter, Stage

NORMS = {"none": leave_one_out, "group_std": group_std()}


class LoopOptions(KlOptions, StepCredit):
    """ratio: level of the importance ratio; token is best on AppWorld, turn and trajectory are the ablations, *_geo
    their geometric means. positive_only: train on trajectories that are better than the others alone.
    """

    tasks: int = Field(40, ge=1)
    group_size: int = Field(6, ge=2)
    ratio: Level = "token"
    norm: Literal["none", "group_std"] = "none"
    singleton: Literal["zero", "raw", "drop"] = "zero"
    clip: float = Field(0.1, gt=0)
    epochs: int = Field(2, ge=1)
    minibatch: int = Field(32, ge=0)
    min_advantage: float = Field(0.01, ge=0)
    positive_only: bool = False
    learning_rate: float = Field(5e-5, gt=0)
    max_grad_norm: float = Field(0.1, ge=0)
    kl_stop: float = Field(20.0, ge=0)

    @model_validator(mode="after")
    def _one_advantage_a_ratio(self) -> LoopOptions:
        if self.ratio == "trajectory" and (self.salt or self.gvpo):
            raise ValueError(
                "ratio=trajectory has one clipped term a trajectory and takes one advantage for it, salt and gvpo give "
                "its steps different ones; use ratio: token or turn, or drop them"
            )
        return self


def stage(options: LoopOptions, materials: Materials) -> Stage:
    average = turn_mean if options.ratio.startswith("turn") else seq_mean_token_mean
    nominal = constant_count(average, options.minibatch or options.tasks * options.group_size)
    policy = clipped_pg(options.clip, level=options.ratio, log_symmetric=True)
    credit = credit_of(options, per_group(NORMS[options.norm], singleton=options.singleton))
    source = task_source(options, materials)
    made = kl_stage(options, materials, source=source, credit=credit, loss=policy, average=nominal)
    return replace(made, filter=_filter(options))


def _filter(options: LoopOptions) -> Filter:
    large = abs_min(options.min_advantage)
    return chain(positive_only, large) if options.positive_only else large


RECIPE = policy_recipe(LoopOptions, stage)
