"""What the recipes share that learn from their own rollouts: options, the source of tasks, optimiser steps."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from jaxagent.config import Record
from jaxagent.data.curriculum import CurriculumOptions, CurriculumSource
from jaxagent.data.tasks import TaskSource
from jaxagent.recipes.base import Materials
from jaxagent.recipes.rewards import OutcomeName, RewardOptions
from jaxagent.stage import Update


class PolicyOptions(Record):
    """An iteration rolls out `tasks` x `group_size` episodes. A recipe restates a default where its paper differs.

    reward: an outcome's name, or a record of an outcome and shaping terms (recipes/rewards.py).
    minibatch: trajectories of an optimiser step; 0 is all of them.
    schedule: of the learning rate, over the stage's optimiser steps, after `warmup_steps`.
    pool: train on the first so many tasks of the split; 0 is all. What learns from a task's earlier episodes (a
          curriculum, a task's skills) needs tasks that return.
    curriculum: draw tasks by what the policy can do (data/curriculum.py); without one, every task once an epoch.
    """

    iterations: int = Field(200, ge=1)
    tasks: int = Field(16, ge=1)
    group_size: int = Field(8, ge=2)
    reward: OutcomeName | RewardOptions = "test_fraction"
    epochs: int = Field(1, ge=1)
    minibatch: int = Field(0, ge=0)
    learning_rate: float = Field(1e-6, gt=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = Field(0, ge=0)
    weight_decay: float = Field(0.01, ge=0)
    max_grad_norm: float = Field(1.0, ge=0)
    pool: int = Field(0, ge=0)
    curriculum: CurriculumOptions | None = None

    @property
    def off_policy(self) -> bool:
        """More than one step an iteration. Otherwise the old log-probs are the current ones, and need no scoring."""
        return self.epochs > 1 or self.minibatch > 0


def task_source(options: PolicyOptions, materials: Materials) -> TaskSource | CurriculumSource:
    pool = materials.tasks[: options.pool or None]
    tasks, rollouts, seed = options.tasks, options.group_size, materials.seed
    if options.curriculum is not None:
        return CurriculumSource(pool, options.curriculum, tasks=tasks, rollouts=rollouts, seed=seed)
    return TaskSource(pool, tasks=tasks, rollouts=rollouts, seed=seed)


def policy_update(options: PolicyOptions, *, kl_stop: float = 0.0) -> Update:
    rollouts = options.tasks * options.group_size
    return Update(
        learning_rate=options.learning_rate,
        schedule=options.schedule,
        warmup_steps=options.warmup_steps,
        # Dropped and filtered rollouts make fewer steps than this: a decay then ends a little above zero.
        steps_per_iteration=options.epochs * math.ceil(rollouts / (options.minibatch or rollouts)),
        epochs=options.epochs,
        minibatch=options.minibatch,
        weight_decay=options.weight_decay,
        max_grad_norm=options.max_grad_norm,
        kl_stop=kl_stop,
    )
