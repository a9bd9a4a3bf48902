"""PPO with a value function (Schulman et al. 2017): GAE over tokens, steps or both, clipped policy and value losses.

    L = -mean_t min(rho_t A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) A_t) + c_v L_v - c_e H (+ beta KL)

`level: token` with gamma 1 and lam 1 is the baseline of most papers on agents (A = R - V), `level: step` with gamma .95
to .99 and lam .95 treats a message as one action, `level: bilevel` is RAGEN's. Credit: credit/gae.py.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from jaxagent.batch.targets import seq_mean_token_mean, token_mean
from jaxagent.credit.gae import GaeRule, Level, gae
from jaxagent.learn.terms import clipped_pg, kl
from jaxagent.recipes.base import Materials
from jaxagent.recipes.policy import PG
from jaxagent.recipes.unread import refuse_unread
from jaxagent.recipes.values import ValueOptions, united, value_recipe, value_stage
from jaxagent.stage import Stage, Term


class PpoOptions(ValueOptions):
    """gamma, lam: of tokens, or of steps at level "step"; gamma_turn, lam_turn: of steps at level "bilevel".

    lam_critic: lam of the value targets; None is the policy's.
    kl_in: to the policy at the start of the stage: in the loss, or k1 taken off every token's reward.
    """

    level: Level = "token"
    gamma: float = Field(1.0, ge=0, le=1)
    lam: float = Field(1.0, ge=0, le=1)
    gamma_turn: float = Field(0.95, ge=0, le=1)
    lam_turn: float = Field(1.0, ge=0, le=1)
    lam_critic: float | None = Field(None, ge=0, le=1)
    whiten: bool = True
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.2, gt=0)
    aggregate: Literal["token_mean", "seq_mean_token_mean"] = "token_mean"
    entropy_coef: float = Field(0.01, ge=0)
    kl_in: Literal["none", "loss", "reward"] = "none"
    kl_estimator: Literal["k1", "k2", "k3", "k3+"] = "k3"
    kl_coef: float = Field(0.001, ge=0)

    @model_validator(mode="after")
    def _read(self) -> PpoOptions:
        refuse_unread(self, "gamma_turn", "lam_turn", read=self.level == "bilevel", when="level: bilevel")
        refuse_unread(self, "kl_coef", read=self.kl_in != "none", when="kl_in")
        refuse_unread(self, "kl_estimator", read=self.kl_in == "loss", when="kl_in: loss")
        return self


def rule_of(options: PpoOptions) -> GaeRule:
    return GaeRule(
        level=options.level,
        gamma=options.gamma,
        lam=options.lam,
        gamma_turn=options.gamma_turn,
        lam_turn=options.lam_turn,
        lam_critic=options.lam_critic,
        whiten=options.whiten,
        value_range=options.value_range,
        rewards=options.rewards,
        bootstrap=options.bootstrap_truncated,
        kl_coef=options.kl_coef if options.kl_in == "reward" else 0.0,
    )


def terms_of(options: PpoOptions) -> dict[str, Term]:
    average = {"token_mean": token_mean, "seq_mean_token_mean": seq_mean_token_mean}[options.aggregate]
    terms = {PG: Term(clipped_pg(options.clip_low, options.clip_high), average)}
    if options.kl_in == "loss":
        terms["kl"] = Term(kl(options.kl_estimator), average, options.kl_coef)
    return terms


def stage(options: PpoOptions, materials: Materials) -> Stage:
    rule, terms = rule_of(options), terms_of(options)
    needs = united(
        ("old",) if options.off_policy else (),
        rule.needs,
        ("reference",) if options.kl_in == "loss" else (),
    )
    steps = options.level == "step"
    return value_stage(options, materials, credit=gae(rule), terms=terms, needs=needs, steps=steps)


RECIPE = value_recipe(PpoOptions, stage)
