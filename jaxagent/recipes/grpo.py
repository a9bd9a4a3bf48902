"""GRPO, with or without KL: the group's z-score as advantage, token ratio, symmetric clip (arXiv 2402.03300).

    A_i = (R_i - mean of the group) / (std of the group + eps)

KL to the policy at the start of the stage: `kl_in: loss` adds beta times an estimator (k3's gradient is that of the
forward KL; k2 and k3+ give the reverse KL's), `kl_in: reward` takes beta times k1 off the return before the group
statistics.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from pydantic import Field

from jaxagent.batch.targets import (
    fixed_len_sum,
    policy_samples,
    seq_mean_token_mean,
    seq_mean_token_sum,
    token_mean,
)
from jaxagent.credit.group import group_mean, group_std, per_group
from jaxagent.learn.terms import clipped_pg, entropy_bonus, kl
from jaxagent.recipes.base import Materials, Recipe
from jaxagent.recipes.credit import StepCredit, credit_of
from jaxagent.recipes.policy import PolicyOptions, policy_update, task_source
from jaxagent.recipes.rewards import returns_of
from jaxagent.rewards.kl import kl_in_reward
from jaxagent.stage import Aggregate, Stage, Term


class GrpoOptions(PolicyOptions, StepCredit):
    """std: divide by the group's standard deviation (false is Dr. GRPO's advantage).

    max_length: the constant L of aggregation fixed_len_sum.
    """

    std: bool = True
    std_floor: float = Field(0.0, ge=0)
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.2, gt=0)
    aggregate: Literal["seq_mean_token_mean", "seq_mean_token_sum", "token_mean", "fixed_len_sum"] = (
        "seq_mean_token_mean"
    )
    max_length: int = Field(1024, ge=1)
    kl_in: Literal["none", "loss", "reward"] = "none"
    kl_estimator: Literal["k1", "k2", "k3", "k3+"] = "k3"
    kl_coef: float = Field(0.001, ge=0)
    entropy_coef: float = Field(0.0, ge=0)


def aggregation(options: GrpoOptions) -> Aggregate:
    return {
        "seq_mean_token_mean": seq_mean_token_mean,
        "seq_mean_token_sum": seq_mean_token_sum,
        "token_mean": token_mean,
        "fixed_len_sum": fixed_len_sum(options.max_length),
    }[options.aggregate]


def terms(options: GrpoOptions) -> dict[str, Term]:
    """Policy gradient, and KL and entropy where their coefficients ask for them."""
    average = aggregation(options)
    chosen = {"pg": Term(clipped_pg(options.clip_low, options.clip_high), average)}
    if options.kl_in == "loss":
        chosen["kl"] = Term(kl(options.kl_estimator), average, options.kl_coef)
    if options.entropy_coef:
        chosen["entropy"] = Term(entropy_bonus(), average, options.entropy_coef)
    return chosen


def streams(options: GrpoOptions) -> tuple[str, ...]:
    """Log-prob streams to score before credit."""
    old = options.off_policy or options.kl_in == "reward"
    return (("old",) if old else ()) + (("reference",) if options.kl_in != "none" else ())


def stage(options: GrpoOptions, materials: Materials) -> Stage:
    chosen = terms(options)
    returns = returns_of(options.reward)
    return Stage(
        name=materials.name,
        source=task_source(options, materials),
        iterations=options.iterations,
        reward=kl_in_reward(returns, beta=options.kl_coef) if options.kl_in == "reward" else returns,
        credit=credit_of(
            options, per_group(group_std(std_floor=options.std_floor) if options.std else group_mean)
        ),
        samples=partial(policy_samples, terms=tuple(chosen)),
        terms=chosen,
        needs=streams(options),
        sampling=materials.sampling,
        update=policy_update(options),
    )


RECIPE = Recipe(GrpoOptions, stage)
