"""Step returns: rewards on the way, subgoals or the environment's, credited to the steps that led to them.

    A[i,k] = sum over j >= k of gamma^(j-k) r[i,j] - baseline of the group         token ratio, clip 0.2 / 0.28, no KL

Added into the return alone and broadcast, a subgoal's reward would lift every step of the episode. `reward: {subgoals:
[…]}` pays at the first step that reaches each, and the return counts it; `progress: {subgoals: […]}` shapes the step
returns by potentials instead (Ng et al., 1999): the return, and what is worth most, stay as they are.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from jaxagent.batch.targets import policy_samples, seq_mean_token_mean
from jaxagent.credit.group import group_mean, leave_one_out
from jaxagent.credit.step_returns import Baseline, step_returns
from jaxagent.learn.terms import clipped_pg
from jaxagent.recipes.base import Materials
from jaxagent.recipes.credit import refuse_over_steps
from jaxagent.recipes.policy import PG, PolicyOptions, policy_recipe, policy_update, task_source
from jaxagent.recipes.rewards import RewardOptions, SubgoalOptions, returns_of
from jaxagent.records import Record
from jaxagent.rewards.step_rewards import Rewards, StepRewards
from jaxagent.rewards.subgoals import progress_shaping
from jaxagent.stage import Stage, Term

BASES = {"group_mean": group_mean, "leave_one_out": leave_one_out}


class ProgressOptions(Record):
    """Potential of a state: the weight of the subgoals reached before it, at most `cap`."""

    subgoals: tuple[SubgoalOptions, ...] = Field(min_length=1)
    cap: float = Field(0.3, gt=0)
    in_order: bool = False


class StepReturnsOptions(PolicyOptions):
    """gamma, baseline, rewards: see credit/step_returns.py."""

    gamma: float = Field(0.95, ge=0, le=1)
    base: Literal["group_mean", "leave_one_out"] = "leave_one_out"
    baseline: Baseline = "step"
    rewards: Rewards = "outcome"
    progress: ProgressOptions | None = None
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.28, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _per_step(cls, values: Any) -> Any:
        return refuse_over_steps(values, "step_returns")

    @model_validator(mode="after")
    def _reads_the_reward(self) -> StepReturnsOptions:
        paid = isinstance(self.reward, RewardOptions) and bool(self.reward.subgoals)
        if paid and self.progress is not None:
            raise ValueError(
                "reward.subgoals pays for subgoals and progress shapes by them; keep one of the two"
            )
        return self


def stage(options: StepReturnsOptions, materials: Materials) -> Stage:
    return Stage(
        name=materials.name,
        source=task_source(options, materials),
        iterations=options.iterations,
        reward=returns_of(options.reward),
        credit=step_returns(
            BASES[options.base],
            gamma=options.gamma,
            baseline=options.baseline,
            rewards=options.rewards,
            shaping=_shaping(options),
        ),
        samples=policy_samples,
        terms={PG: Term(clipped_pg(options.clip_low, options.clip_high), seq_mean_token_mean)},
        needs=("old",) if options.off_policy else (),
        sampling=materials.sampling,
        update=policy_update(options),
    )


def _shaping(options: StepReturnsOptions) -> StepRewards | None:
    progress = options.progress
    if progress is None:
        return None
    goals = [goal.subgoal() for goal in progress.subgoals]
    return progress_shaping(goals, gamma=options.gamma, cap=progress.cap, in_order=progress.in_order)


RECIPE = policy_recipe(StepReturnsOptions, stage)
