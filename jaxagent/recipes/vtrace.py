"""Actor-critic with V-trace (1802.01561): what a policy with a critic makes of rollouts that an older one sampled.

    L = -mean_t A_t log p_t + c_v L_v - c_e H        A and the value targets: credit/vtrace.py

The weights are those of the policy at the start of the iteration against the sampler. A holds them already, so nothing
is clipped in the loss: keep to one epoch, for later ones nothing holds the policy near the old one.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from jaxagent.batch.targets import token_mean
from jaxagent.credit.vtrace import VtraceRule, vtrace
from jaxagent.learn.terms import policy_gradient
from jaxagent.recipes.base import Materials
from jaxagent.recipes.policy import PG
from jaxagent.recipes.values import ValueOptions, value_recipe, value_stage
from jaxagent.stage import Stage, Term


class VtraceOptions(ValueOptions):
    """rho_bar caps the weight of an advantage, c_bar how far back an error is carried; c_bar <= rho_bar."""

    level: Literal["token", "step"] = "token"
    gamma: float = Field(1.0, ge=0, le=1)
    lam: float = Field(1.0, ge=0, le=1)
    rho_bar: float = Field(1.0, gt=0)
    c_bar: float = Field(1.0, gt=0)
    entropy_coef: float = Field(0.01, ge=0)

    @model_validator(mode="after")
    def _caps(self) -> VtraceOptions:
        if self.c_bar > self.rho_bar:
            raise ValueError(f"c_bar={self.c_bar} is above rho_bar={self.rho_bar}; lower it")
        return self

    @model_validator(mode="after")
    def _corrects_once(self) -> VtraceOptions:
        if self.mismatch.mode != "none":
            raise ValueError(
                f"mismatch.mode={self.mismatch.mode}: V-trace's advantages hold the ratio of trainer and sampler "
                "already; drop it"
            )
        if self.replay is not None:
            raise ValueError(
                "replay corrects the age of a trajectory by the ratio of the loss, and V-trace's loss has none; "
                "drop it, or use recipe ppo"
            )
        return self


def stage(options: VtraceOptions, materials: Materials) -> Stage:
    rule = VtraceRule(
        level=options.level,
        gamma=options.gamma,
        lam=options.lam,
        rho_bar=options.rho_bar,
        c_bar=options.c_bar,
        value_range=options.value_range,
        rewards=options.rewards,
        bootstrap=options.bootstrap_truncated,
    )
    return value_stage(
        options,
        materials,
        credit=vtrace(rule),
        terms={PG: Term(policy_gradient(), token_mean)},
        needs=rule.needs,
        steps=options.level == "step",
    )


RECIPE = value_recipe(VtraceOptions, stage)
