"""GiGPO: an episode's advantage within its group, plus each step's among the steps from the same state (2505.10978).

    A[i,k] = A_E[i] + w A_S[i,k]                           token ratio, clip 0.2, every step one sample, KL 0.01 (k3)

ALFWorld divides by the standard deviations ("mean_std"), WebShop does not ("mean"); reward 10 for success and -0.1 for
an illegal action.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from pydantic import Field, model_validator

from jaxagent.batch.targets import policy_samples, seq_mean_token_mean, step_mean
from jaxagent.credit.gigpo import EpisodeUnit, Mode, gigpo
from jaxagent.learn.terms import clipped_pg, kl
from jaxagent.recipes.base import Materials
from jaxagent.recipes.credit import refuse_over_steps
from jaxagent.recipes.policy import PG, PolicyOptions, policy_recipe, policy_update, task_source
from jaxagent.recipes.rewards import OutcomeName, RewardOptions, returns_of
from jaxagent.rewards.step_rewards import Rewards
from jaxagent.stage import Stage, Term

REWARD = RewardOptions.parse({"outcome": "success", "scale": 10.0, "invalid_action": -0.1})


class GigpoOptions(PolicyOptions):
    """gamma, w, mode, rewards, similarity, episode_unit, singleton: see credit/gigpo.py.

    unit: what a sequence of the loss is: a step, as in the authors' code, or a whole trajectory.
    kl_coef: weight of k3 to the policy at the start of the stage; 0 keeps no reference.
    """

    iterations: int = Field(150, ge=1)
    reward: OutcomeName | RewardOptions = REWARD
    gamma: float = Field(0.95, ge=0, le=1)
    w: float = Field(1.0, ge=0)
    mode: Mode = "mean_std"
    rewards: Rewards = "outcome"
    similarity: float = Field(0.0, ge=0, le=1)
    episode_unit: EpisodeUnit = "trajectories"
    singleton: Literal["zero", "raw", "drop"] = "zero"
    unit: Literal["step", "trajectory"] = "step"
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.2, gt=0)
    kl_coef: float = Field(0.01, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _per_step(cls, values: Any) -> Any:
        return refuse_over_steps(values, "gigpo")


def stage(options: GigpoOptions, materials: Materials) -> Stage:
    average = step_mean if options.unit == "step" else seq_mean_token_mean
    terms = {PG: Term(clipped_pg(options.clip_low, options.clip_high), average)}
    if options.kl_coef:
        terms["kl"] = Term(kl("k3"), average, options.kl_coef)
    return Stage(
        name=materials.name,
        source=task_source(options, materials),
        iterations=options.iterations,
        reward=returns_of(options.reward),
        credit=gigpo(
            gamma=options.gamma,
            w=options.w,
            mode=options.mode,
            rewards=options.rewards,
            similarity=options.similarity,
            episode_unit=options.episode_unit,
            singleton=options.singleton,
        ),
        samples=partial(policy_samples, terms=tuple(terms)),
        terms=terms,
        needs=(("old",) if options.off_policy else ()) + (("reference",) if options.kl_coef else ()),
        sampling=materials.sampling,
        update=policy_update(options),
    )


RECIPE = policy_recipe(GigpoOptions, stage)
