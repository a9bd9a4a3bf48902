"""LOOP: leave-one-out PPO (arXiv 2502.01600). Critic-free, reference-free, several clipped minibatches an iteration.

    A_i = R_i - mean of the other rollouts of the task            no division by a standard deviation
    J_i = mean over i's action tokens of min(rho A_i, clip(rho, 1/(1+eps), 1+eps) A_i)
    loss = -(1/M) sum over the minibatch of J_i                   M is the nominal minibatch size, also after filtering

R is the fraction of unit tests passed. Defaults are those of the released code for AppWorld with Qwen2.5-32B.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from jaxagent.batch.targets import constant_count, policy_samples, seq_mean_token_mean, turn_mean
from jaxagent.credit.filters import abs_min
from jaxagent.credit.group import leave_one_out, per_group
from jaxagent.learn.terms import clipped_pg
from jaxagent.recipes.base import Materials, Recipe
from jaxagent.recipes.credit import StepCredit, credit_of
from jaxagent.recipes.policy import PolicyOptions, policy_update, task_source
from jaxagent.recipes.rewards import returns_of
from jaxagent.stage import Stage, Term


class LoopOptions(PolicyOptions, StepCredit):
    """ratio: level of the importance ratio; token is best on AppWorld, turn and trajectory are the ablations."""

    tasks: int = Field(40, ge=1)
    group_size: int = Field(6, ge=2)
    ratio: Literal["token", "turn", "trajectory"] = "token"
    clip: float = Field(0.1, gt=0)
    epochs: int = Field(2, ge=1)
    minibatch: int = Field(32, ge=0)
    min_advantage: float = Field(0.01, ge=0)
    learning_rate: float = Field(5e-5, gt=0)
    max_grad_norm: float = Field(0.1, ge=0)
    kl_stop: float = Field(20.0, ge=0)


def stage(options: LoopOptions, materials: Materials) -> Stage:
    average = turn_mean if options.ratio == "turn" else seq_mean_token_mean
    nominal = options.minibatch or options.tasks * options.group_size
    policy_gradient = clipped_pg(options.clip, level=options.ratio, log_symmetric=True)
    return Stage(
        name=materials.name,
        source=task_source(options, materials),
        iterations=options.iterations,
        reward=returns_of(options.reward),
        credit=credit_of(options, per_group(leave_one_out)),
        filter=abs_min(options.min_advantage),
        samples=policy_samples,
        terms={"pg": Term(policy_gradient, constant_count(average, nominal))},
        needs=("old",) if options.off_policy else (),
        sampling=materials.sampling,
        update=policy_update(options, kl_stop=options.kl_stop),
    )


RECIPE = Recipe(LoopOptions, stage)
