"""REINFORCE++: critic-free, normalised over the whole batch (arXiv 2501.03262).

    A = (x - mu) / sqrt(var + 1e-8)     mu, var over all trained tokens of the batch, long trajectories weigh more
    x_t = sum over t' >= t of r_t'      r: R on the last token, and with kl_in: reward -beta k1 on every token
    group_baseline: x = R - mean of the group, on every token

Easy and hard tasks keep their relative scale. Clip .2 and the mean over tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field, model_validator

from jaxagent.batch.targets import token_mean
from jaxagent.credit.batch import domain, reinforce_pp, reinforce_pp_tokens, whole_batch
from jaxagent.learn.terms import clipped_pg
from jaxagent.recipes.base import Materials
from jaxagent.recipes.kl import KlOptions, kl_returns, kl_stage
from jaxagent.recipes.policy import policy_recipe, task_source
from jaxagent.recipes.rewards import returns_of
from jaxagent.stage import Credit, Returns, Stage

SCOPES = {"batch": whole_batch, "domain": domain}


class RppOptions(KlOptions):
    """norm_scope: what is whitened together; domain is a task's meta["domain"], else its environment.

    gamma: discount a token. kl_in: reward is per token; with group_baseline it is the sum over the trajectory, taken
    off the return before the group's mean.
    """

    group_baseline: bool = False
    norm_scope: Literal["batch", "domain"] = "batch"
    gamma: float = Field(1.0, ge=0, le=1)
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.2, gt=0)

    @model_validator(mode="after")
    def _whole_returns(self) -> RppOptions:
        if self.group_baseline and self.gamma != 1:
            raise ValueError("group_baseline compares whole returns; keep gamma: 1")
        return self


def stage(options: RppOptions, materials: Materials) -> Stage:
    returns, credit = _returns_and_credit(options)
    policy = clipped_pg(options.clip_low, options.clip_high)
    source = task_source(options, materials)
    made = kl_stage(options, materials, source=source, credit=credit, loss=policy, average=token_mean)
    return replace(made, reward=returns)


def _returns_and_credit(options: RppOptions) -> tuple[Returns, Credit]:
    """KL in the reward is in the return where that is one number, and in the credit where it is one a token."""
    returns, scope = returns_of(options.reward), SCOPES[options.norm_scope]
    if options.group_baseline:
        return kl_returns(options, returns), reinforce_pp(group_baseline=True, scope=scope)
    kl_coef = options.kl_coef if options.kl_in == "reward" else 0.0
    if kl_coef == 0 and options.gamma == 1:
        return returns, reinforce_pp(scope=scope)
    return returns, reinforce_pp_tokens(kl_coef=kl_coef, gamma=options.gamma, scope=scope)


RECIPE = policy_recipe(RppOptions, stage)
