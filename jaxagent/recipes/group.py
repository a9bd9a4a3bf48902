"""What the recipes share that compare a task's rollouts with each other: group statistics, averaging, KL.

    A_i = (R_i - mean of the group) / (std of the group + eps), or without the division

GRPO, GSPO, CISPO and DAPO differ in the policy loss, and in what is sampled.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from jaxagent.batch.targets import (
    fixed_len_sum,
    seq_mean_token_mean,
    seq_mean_token_sum,
    token_mean,
    verl_sum_norm,
)
from jaxagent.credit.filters import most_varied, zero_std
from jaxagent.credit.group import group_mean, group_std, per_group
from jaxagent.learn.loss import Loss
from jaxagent.recipes.base import Materials
from jaxagent.recipes.credit import StepCredit, credit_of, refuse_dropped_groups
from jaxagent.recipes.kl import KlOptions, kl_stage
from jaxagent.recipes.policy import task_source
from jaxagent.recipes.unread import refuse_unread
from jaxagent.stage import Aggregate, Credit, Stage

AggregateName = Literal[
    "seq_mean_token_mean", "seq_mean_token_sum", "token_mean", "fixed_len_sum", "verl_sum_norm"
]


OF_LENGTH = ("fixed_len_sum", "verl_sum_norm")
LENGTH_WHEN = "aggregate " + " or ".join(OF_LENGTH)


class GroupOptions(KlOptions, StepCredit):
    """std: divide by the group's standard deviation, of `std_ddof` 1 (verl) or 0, at least `std_floor`, plus `eps`.

    singleton: what the only survivor of a group gets: A = 0, A = R ("raw"), or nothing ("drop").
    keep_groups: all, those whose returns vary, or the `keep_share` of them that vary most ("std", StarPO-S) or least.
    max_length: the constant L of the aggregations fixed_len_sum and verl_sum_norm.
    """

    std: bool = True
    std_ddof: Literal[0, 1] = 1
    std_floor: float = Field(0.0, ge=0)
    eps: float = Field(1e-6, ge=0)
    singleton: Literal["zero", "raw", "drop"] = "zero"
    keep_groups: Literal["all", "varied", "std", "std_rev"] = "all"
    keep_share: float = Field(0.25, gt=0, le=1)
    aggregate: AggregateName = "seq_mean_token_mean"
    max_length: int = Field(1024, ge=1)

    @model_validator(mode="after")
    def _fits(self) -> GroupOptions:
        refuse_unread(
            self, "keep_share", read=self.keep_groups in ("std", "std_rev"), when="keep_groups std or std_rev"
        )
        refuse_unread(self, "std_ddof", "std_floor", "eps", read=self.std, when="std: true")
        refuse_unread(self, "max_length", read=self.aggregate in OF_LENGTH, when=LENGTH_WHEN)
        if self.keep_groups != "all":
            refuse_dropped_groups(self, f"keep_groups={self.keep_groups}")
        return self


def group_credit(options: GroupOptions) -> Credit:
    divided = group_std(ddof=options.std_ddof, eps=options.eps, std_floor=options.std_floor)
    base = per_group(divided if options.std else group_mean, singleton=options.singleton)
    credit = credit_of(options, base)
    if options.keep_groups == "all":
        return credit
    if options.keep_groups == "varied":
        return zero_std(credit)
    return most_varied(credit, share=options.keep_share, rank_by=options.keep_groups)


def aggregation(name: AggregateName, max_length: int) -> Aggregate:
    return {
        "seq_mean_token_mean": seq_mean_token_mean,
        "seq_mean_token_sum": seq_mean_token_sum,
        "token_mean": token_mean,
        "fixed_len_sum": fixed_len_sum(max_length),
        "verl_sum_norm": verl_sum_norm(max_length),
    }[name]


def group_stage(options: GroupOptions, materials: Materials, loss: Loss) -> Stage:
    """The stage of a group method with this policy loss."""
    average = aggregation(options.aggregate, options.max_length)
    return kl_stage(
        options,
        materials,
        source=task_source(options, materials),
        credit=group_credit(options),
        loss=loss,
        average=average,
    )
