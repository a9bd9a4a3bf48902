"""Value pre-training: the head learns the returns of a policy that stays as it is (VAPO, LOOP's PPO baseline).

    loss = mean over action tokens of 1/2 (V - ret)^2        ret: the discounted return from the token on

Put before a stage that needs values: `stages: [{recipe: critic, …}, {recipe: ppo, …}]`. Nothing but the head changes,
whether it is detached or not.
"""

from __future__ import annotations

from functools import partial

from pydantic import Field, model_validator

from jaxagent.batch.targets import token_mean
from jaxagent.batch.values import VALUE, value_samples
from jaxagent.credit.gae import GaeRule, Level, monte_carlo
from jaxagent.learn.value import value_loss
from jaxagent.model.critic import PREFIX
from jaxagent.recipes.base import Materials
from jaxagent.recipes.policy import PolicyOptions, policy_recipe, policy_update, task_source
from jaxagent.recipes.rewards import returns_of
from jaxagent.recipes.unread import refuse_unread
from jaxagent.rewards.step_rewards import Rewards
from jaxagent.stage import Stage, Term


class CriticOptions(PolicyOptions):
    """level, gamma, gamma_turn, rewards: as in the stage that follows (recipes/ppo.py)."""

    iterations: int = Field(10, ge=1)
    group_size: int = Field(8, ge=1)
    level: Level = "token"
    gamma: float = Field(1.0, ge=0, le=1)
    gamma_turn: float = Field(0.95, ge=0, le=1)
    rewards: Rewards = "outcome"
    learning_rate: float = Field(1e-4, gt=0)
    weight_decay: float = Field(0.0, ge=0)

    @model_validator(mode="after")
    def _trains_no_policy(self) -> CriticOptions:
        refuse_unread(self, "gamma_turn", read=self.level == "bilevel", when="level: bilevel")
        refuse_unread(self, "kl_stop", read=False, when="a policy term, of which there is none here,")
        if self.entropy_coef or self.solved_nll or self.mismatch.mode != "none":
            raise ValueError(
                f"entropy_coef={self.entropy_coef}, solved_nll={self.solved_nll}, mismatch.mode={self.mismatch.mode}: "
                "they belong to a policy term, and there is none here; drop them"
            )
        return self


def stage(options: CriticOptions, materials: Materials) -> Stage:
    rule = GaeRule(options.level, options.gamma, gamma_turn=options.gamma_turn, rewards=options.rewards)
    return Stage(
        name=materials.name,
        source=task_source(options, materials),
        iterations=options.iterations,
        reward=returns_of(options.reward),
        credit=monte_carlo(rule),
        samples=partial(value_samples, steps=options.level == "step"),
        terms={VALUE: Term(value_loss(), token_mean)},
        trains=PREFIX,
        sampling=materials.sampling,
        update=policy_update(options),
    )


RECIPE = policy_recipe(CriticOptions, stage, critic=lambda options: True)
