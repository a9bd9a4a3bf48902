"""Value pre-training: the head learns the returns of a policy that stays as it is (VAPO, LOOP's PPO baseline).

    loss = mean over action tokens of 1/2 (V - ret)^2        ret: the discounted return from the token on

Put before a stage that needs values: `stages: [{recipe: critic, …}, {recipe: ppo, …}]`. Nothing but the head changes,
whether it is detached or not.
"""

from __future__ import annotations

from functools import partial
from math import ceil
from typing import Literal

from pydantic import Field

from jaxagent.batch.targets import token_mean
from jaxagent.batch.values import VALUE, value_samples
from jaxagent.config import Record
from jaxagent.credit.gae import GaeRule, Level, monte_carlo
from jaxagent.data.tasks import TaskSource
from jaxagent.learn.value import value_loss
from jaxagent.model.critic import PREFIX
from jaxagent.recipes.base import Materials, Recipe
from jaxagent.recipes.rewards import OutcomeName, RewardOptions, returns_of
from jaxagent.rewards.step_rewards import Rewards
from jaxagent.stage import Stage, Term, Update


class CriticOptions(Record):
    """An iteration rolls out `tasks` x `group_size` episodes; the optimiser's options are those of recipes/policy.py.

    reward, rewards, level, gamma, gamma_turn: as in the stage that follows (recipes/ppo.py).
    """

    iterations: int = Field(10, ge=1)
    tasks: int = Field(16, ge=1)
    group_size: int = Field(8, ge=1)
    reward: OutcomeName | RewardOptions = "test_fraction"
    level: Level = "token"
    gamma: float = Field(1.0, ge=0, le=1)
    gamma_turn: float = Field(0.95, ge=0, le=1)
    rewards: Rewards = "outcome"
    epochs: int = Field(1, ge=1)
    minibatch: int = Field(0, ge=0)
    learning_rate: float = Field(1e-4, gt=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = Field(0, ge=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, ge=0)


def stage(options: CriticOptions, materials: Materials) -> Stage:
    rule = GaeRule(options.level, options.gamma, gamma_turn=options.gamma_turn, rewards=options.rewards)
    rollouts = options.tasks * options.group_size
    return Stage(
        name=materials.name,
        source=TaskSource(
            materials.tasks, tasks=options.tasks, rollouts=options.group_size, seed=materials.seed
        ),
        iterations=options.iterations,
        reward=returns_of(options.reward),
        credit=monte_carlo(rule),
        samples=partial(value_samples, steps=options.level == "step"),
        terms={VALUE: Term(value_loss(), token_mean)},
        trains=PREFIX,
        sampling=materials.sampling,
        update=Update(
            learning_rate=options.learning_rate,
            schedule=options.schedule,
            warmup_steps=options.warmup_steps,
            steps_per_iteration=options.epochs * ceil(rollouts / (options.minibatch or rollouts)),
            epochs=options.epochs,
            minibatch=options.minibatch,
            weight_decay=options.weight_decay,
            max_grad_norm=options.max_grad_norm,
        ),
    )


RECIPE = Recipe(CriticOptions, stage, critic=lambda options: True)
