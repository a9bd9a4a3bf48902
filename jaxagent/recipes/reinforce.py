"""REINFORCE and RLOO: the plain policy gradient with a baseline (Williams 1992; Ahmadian et al. 2402.14740).

    A[i,k] = sum over j >= k of gamma^(j-k) r[i,j] - b    b: none, the batch's mean, or that of iterations before
    A_i    = R_i - mean of the task's other rollouts      leave_one_out: RLOO;   leave_none_out: of all of them
    loss   = -(1/N) sum over trajectories and tokens of A log pi

What an older policy sampled (rollouts that run ahead, later steps of an iteration, replay) is weighted by the ratio,
unclipped: -rho A, which has the gradient of -A log pi where nothing is old.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from jaxagent.credit.batch import batch_mean, constant, reinforce
from jaxagent.credit.group import group_mean, leave_one_out, per_group
from jaxagent.data.average import ReturnAverage
from jaxagent.learn.terms import policy_gradient
from jaxagent.recipes.base import Materials
from jaxagent.recipes.credit import StepCredit, credit_of
from jaxagent.recipes.group import LENGTH_WHEN, OF_LENGTH, AggregateName, aggregation
from jaxagent.recipes.kl import KlOptions, kl_stage
from jaxagent.recipes.policy import policy_recipe, task_source
from jaxagent.recipes.rewards import RewardOptions
from jaxagent.recipes.unread import refuse_unread
from jaxagent.rewards.step_rewards import REWARDS, Rewards
from jaxagent.stage import Credit, Source, Stage

GROUPS = {"leave_one_out": leave_one_out, "leave_none_out": group_mean}


class ReinforceOptions(KlOptions, StepCredit):
    """rewards: see rewards/step_rewards.py. gamma: discount a step.

    decay: what the running mean keeps of itself in an iteration. singleton: see GRPO's.
    """

    group_size: int = Field(8, ge=1)
    baseline: Literal["none", "batch_mean", "running_mean", "leave_one_out", "leave_none_out"] = "batch_mean"
    decay: float = Field(0.9, ge=0, lt=1)
    gamma: float = Field(1.0, ge=0, le=1)
    rewards: Rewards = "outcome"
    singleton: Literal["zero", "raw", "drop"] = "zero"
    aggregate: AggregateName = "seq_mean_token_sum"
    max_length: int = Field(1024, ge=1)

    @model_validator(mode="after")
    def _has_a_baseline(self) -> ReinforceOptions:
        refuse_unread(self, "decay", read=self.baseline == "running_mean", when="baseline: running_mean")
        refuse_unread(self, "singleton", read=self.baseline in GROUPS, when="baseline " + " or ".join(GROUPS))
        refuse_unread(self, "max_length", read=self.aggregate in OF_LENGTH, when=LENGTH_WHEN)
        if self.kl_in == "reward" and self.rewards == "environment":
            raise ValueError("kl_in=reward changes the return, which rewards=environment does not read")
        if self.salt is not None and (self.gamma != 1 or self.rewards != "outcome"):
            raise ValueError(
                "salt averages the one advantage that a trajectory has; keep gamma: 1 and rewards: outcome with it"
            )
        if self.baseline not in GROUPS:
            if self.salt is not None and isinstance(self.reward, RewardOptions) and self.reward.by_step:
                raise ValueError(
                    f"baseline={self.baseline} credits invalid_action and subgoals to their steps, and salt "
                    "averages the one advantage that a trajectory has; use a baseline of groups, or drop one of them"
                )
            return self
        if self.group_size < 2:
            raise ValueError(
                f"baseline={self.baseline} compares rollouts of a task; set group_size to 2 or more"
            )
        if self.gamma != 1 or self.rewards != "outcome":
            raise ValueError(
                f"baseline={self.baseline} compares whole returns; keep gamma: 1 and rewards: outcome"
            )
        return self


def stage(options: ReinforceOptions, materials: Materials) -> Stage:
    source, credit = _source_and_credit(options, task_source(options, materials))
    average = aggregation(options.aggregate, options.max_length)
    return kl_stage(
        options,
        materials,
        source=source,
        credit=credit_of(options, credit),
        loss=policy_gradient("token"),
        average=average,
    )


def _source_and_credit(options: ReinforceOptions, source: Source) -> tuple[Source, Credit]:
    """The running mean is remembered by the source, whose state is checkpointed."""
    if options.baseline in GROUPS:
        return source, per_group(GROUPS[options.baseline], singleton=options.singleton)
    rewards = REWARDS[options.rewards]
    baseline = constant(0.0) if options.baseline == "none" else batch_mean
    if options.baseline == "running_mean":
        source = ReturnAverage(source, decay=options.decay, rewards=rewards)
        baseline = source.baseline
    return source, reinforce(baseline=baseline, gamma=options.gamma, rewards=rewards)


RECIPE = policy_recipe(ReinforceOptions, stage)
