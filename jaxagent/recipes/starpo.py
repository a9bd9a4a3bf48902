"""StarPO and StarPO-S (RAGEN, arXiv 2504.20073): an episode of thoughts and actions trained as one sequence.

    StarPO     PPO with GAE over tokens or both levels, or GRPO (`advantage: group`, no value function)
    StarPO-S   keeps the quarter of the groups whose returns vary most, has a critic, clips higher, and no KL

A message without a legal action costs .1. The first sign of a collapse is a fall of the spread within groups, then of
the entropy; a jump of the gradient norm comes too late.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from pydantic import Field, model_validator

from jaxagent.batch.targets import policy_samples, token_mean
from jaxagent.batch.values import VALUE, value_samples
from jaxagent.credit.filters import most_varied
from jaxagent.credit.gae import GaeRule, gae
from jaxagent.credit.group import group_std, per_group
from jaxagent.credit.normalise import By, How, on_normalised
from jaxagent.learn.terms import clipped_pg, kl
from jaxagent.recipes.base import Materials
from jaxagent.recipes.policy import PG, PolicyOptions, task_source
from jaxagent.recipes.rewards import OutcomeName, RewardOptions, returns_of
from jaxagent.recipes.unread import refuse_unread
from jaxagent.recipes.values import ValueOptions, united, value_recipe, value_term, value_update
from jaxagent.stage import Credit, Stage, Term

REWARD = RewardOptions.parse({"outcome": "success", "invalid_action": -0.1})


OF_VALUES = (*ValueOptions.model_fields.keys() - PolicyOptions.model_fields.keys(), "gamma", "lam", "whiten")


class StarpoOptions(ValueOptions):
    """advantage: "token" or "bilevel" GAE, or "group", the group's z-score.

    keep_frac: share of the groups that are trained on; rank_by: "std" keeps those whose returns vary most, "std_rev"
               those that vary least.
    normalise, normalise_by: what is done to the returns of a task's group, or of the batch, before advantages.
    """

    iterations: int = Field(200, ge=1)
    tasks: int = Field(8, ge=1)
    group_size: int = Field(16, ge=1)
    reward: OutcomeName | RewardOptions = REWARD
    advantage: Literal["token", "bilevel", "group"] = "token"
    gamma: float = Field(1.0, ge=0, le=1)
    lam: float = Field(1.0, ge=0, le=1)
    gamma_turn: float = Field(0.95, ge=0, le=1)
    whiten: bool = True
    keep_frac: float = Field(1.0, gt=0, le=1)
    rank_by: Literal["std", "std_rev"] = "std"
    normalise: How = "identity"
    normalise_by: By = "group"
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.2, gt=0)
    entropy_coef: float = Field(0.001, ge=0)
    kl_coef: float = Field(0.001, ge=0)

    @model_validator(mode="after")
    def _fits(self) -> StarpoOptions:
        refuse_unread(self, *OF_VALUES, read=self.valued, when="advantage: token or bilevel")
        refuse_unread(self, "gamma_turn", read=self.advantage == "bilevel", when="advantage: bilevel")
        refuse_unread(self, "rank_by", read=self.keep_frac < 1, when="keep_frac below 1")
        refuse_unread(self, "normalise_by", read=self.normalise != "identity", when="normalise")
        if self.normalise != "identity" and self.rewards == "environment":
            raise ValueError(
                f"normalise={self.normalise} changes returns, but rewards: environment pays step by step; use rewards: "
                "outcome"
            )
        if self.advantage == "group" and self.group_size < 2:
            raise ValueError("group_size=1 gives every trajectory advantage 0; set it to 2 or more")
        return self

    @property
    def valued(self) -> bool:
        """Whether there is a value function."""
        return self.advantage != "group"


class StarpoSOptions(StarpoOptions):
    """The stabilised variant: other defaults, nothing else."""

    advantage: Literal["token", "bilevel", "group"] = "bilevel"
    keep_frac: float = Field(0.25, gt=0, le=1)
    clip_high: float = Field(0.28, gt=0)
    kl_coef: float = Field(0.0, ge=0)


def rule_of(options: StarpoOptions) -> GaeRule:
    return GaeRule(
        level="bilevel" if options.advantage == "bilevel" else "token",
        gamma=options.gamma,
        lam=options.lam,
        gamma_turn=options.gamma_turn,
        lam_turn=options.lam,
        whiten=options.whiten,
        value_range=options.value_range,
        rewards=options.rewards,
        bootstrap=options.bootstrap_truncated,
    )


def credit_of(options: StarpoOptions) -> Credit:
    """Groups are chosen by their returns as they are; normalisation and whitening see what is kept."""
    credit = gae(rule_of(options)) if options.valued else per_group(group_std())
    credit = on_normalised(credit, how=options.normalise, by=options.normalise_by)
    if options.keep_frac == 1:
        return credit
    return most_varied(credit, share=options.keep_frac, rank_by=options.rank_by)


def stage(options: StarpoOptions, materials: Materials) -> Stage:
    terms = {PG: Term(clipped_pg(options.clip_low, options.clip_high), token_mean)}
    if options.kl_coef:
        terms["kl"] = Term(kl("k3"), token_mean, options.kl_coef)
    make_samples = value_samples if options.valued else policy_samples
    return Stage(
        name=materials.name,
        source=task_source(options, materials),
        iterations=options.iterations,
        reward=returns_of(options.reward),
        credit=credit_of(options),
        samples=partial(make_samples, terms=tuple(terms)),
        terms=terms | ({VALUE: value_term(options)} if options.valued else {}),
        needs=united(
            ("old",) if options.off_policy else (),
            rule_of(options).needs if options.valued else (),
            ("reference",) if options.kl_coef else (),
        ),
        sampling=materials.sampling,
        update=value_update(options),
    )


RECIPE = value_recipe(StarpoOptions, stage, critic=lambda options: options.valued)
STABILISED = value_recipe(StarpoSOptions, stage, critic=lambda options: options.valued)
