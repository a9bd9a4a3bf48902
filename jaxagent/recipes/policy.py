"""What the recipes share that learn from their own rollouts: options, the source of tasks, optimiser steps.

A recipe file ends with `RECIPE = policy_recipe(Options, stage)`: what the shared options ask for beside the method (the
correction of a mismatch, entropy, imitation of solved episodes) is then done for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from jaxagent.batch.targets import token_mean
from jaxagent.data.curriculum import CurriculumOptions, CurriculumSource
from jaxagent.data.stored import StoredSource, open_store
from jaxagent.data.tasks import TaskSource
from jaxagent.errors import ConfigError
from jaxagent.learn.terms import cross_entropy, entropy_bonus
from jaxagent.recipes.base import Materials, Recipe
from jaxagent.recipes.mismatch import MismatchOptions, corrected_stage
from jaxagent.recipes.replay import ReplayOptions
from jaxagent.recipes.rewards import OutcomeName, RewardOptions
from jaxagent.recipes.steps import StepOptions, update_of
from jaxagent.recipes.unread import refuse_unread
from jaxagent.stage import Source, Stage, Term, Update
from jaxagent.types import Credited, Sample

PG = "pg"  # the policy term of every recipe


class PolicyOptions(StepOptions):
    """An iteration rolls out `tasks` x `group_size` episodes. A recipe restates a default where its paper differs.

    reward: an outcome's name, or a record of an outcome and shaping terms (recipes/rewards.py).
    rollouts_from: a run folder or store whose rollouts are trained on instead of new ones (data/rollout_store.py).
    replay: earlier trajectories beside the new ones (recipes/replay.py).
    pool: train on the first so many tasks of the split; 0 is all. What learns from a task's earlier episodes (a
          curriculum, a task's skills) needs tasks that return.
    curriculum: draw tasks by what the policy can do (data/curriculum.py); without one, every task once an epoch.
    kl_stop, grad_outlier_sigma: see `Update`; 0 is off.
    mismatch: correction of the difference between sampler and trainer (recipes/mismatch.py).
    entropy_coef: weight of the entropy, averaged as the policy loss is; 0 is off.
    solved_nll: weight of -log p over the tokens of the solved episodes (VAPO: 0.1); 0 is off.
    """

    iterations: int = Field(200, ge=1)
    tasks: int = Field(16, ge=1)
    group_size: int = Field(8, ge=2)
    reward: OutcomeName | RewardOptions = "test_fraction"
    rollouts_from: str = ""
    replay: ReplayOptions | None = None
    pool: int = Field(0, ge=0)
    curriculum: CurriculumOptions | None = None
    kl_stop: float = Field(0.0, ge=0)
    grad_outlier_sigma: float = Field(0.0, ge=0)
    mismatch: MismatchOptions = MismatchOptions()
    entropy_coef: float = Field(0.0, ge=0)
    solved_nll: float = Field(0.0, ge=0)

    @model_validator(mode="after")
    def _stored_tasks(self) -> PolicyOptions:
        refuse_unread(
            self,
            "pool",
            "curriculum",
            read=not self.rollouts_from,
            when="rollouts of its own (no rollouts_from)",
        )
        return self

    @property
    def off_policy(self) -> bool:
        """More than one step an iteration. Otherwise the old log-probs are the current ones, and need no scoring."""
        return self.epochs > 1 or self.minibatch > 0 or self.replay is not None


def task_source(options: PolicyOptions, materials: Materials) -> Source:
    if options.rollouts_from:
        store = open_store(options.rollouts_from, materials.origin)
        rows = {"row": materials.row, "scored": materials.scored, "spare": materials.spare}
        return StoredSource(store, groups=options.tasks, seed=materials.seed, **rows)
    return drawn(options, materials, options.tasks)


def drawn(options: PolicyOptions, materials: Materials, tasks: int) -> TaskSource | CurriculumSource:
    """A source of `tasks` tasks a draw, by the curriculum if there is one."""
    pool, rollouts, seed = materials.tasks[: options.pool or None], options.group_size, materials.seed
    if options.curriculum is not None:
        return CurriculumSource(pool, options.curriculum, tasks=tasks, rollouts=rollouts, seed=seed)
    return TaskSource(pool, tasks=tasks, rollouts=rollouts, seed=seed)


def policy_update(options: PolicyOptions) -> Update:
    return replace(
        update_of(options, options.tasks * options.group_size),
        kl_stop=options.kl_stop,
        outlier_sigma=options.grad_outlier_sigma,
    )


def policy_recipe(
    options: type[PolicyOptions],
    stage: Callable[[Any, Materials], Stage],
    *,
    critic: Callable[[Any], bool] = lambda options: False,
    spare: Callable[[Any], int] = lambda options: 0,
) -> Recipe:
    """The recipe of `stage`, with what the shared options ask for. critic, spare: see `Recipe`."""

    def whole(chosen: PolicyOptions, materials: Materials) -> Stage:
        made = corrected_stage(stage(chosen, materials), chosen.mismatch)
        if PG not in made.terms and (chosen.entropy_coef or chosen.solved_nll):
            raise ConfigError(
                f"stage {made.name}: entropy_coef={chosen.entropy_coef}, solved_nll={chosen.solved_nll}: they stand "
                f"beside a policy term, and this recipe has only {', '.join(made.terms)}; drop them"
            )
        if chosen.entropy_coef:
            entropy = Term(entropy_bonus(), made.terms[PG].aggregate, chosen.entropy_coef)
            made = with_term(made, "entropy", entropy, lambda item: True)
        if chosen.solved_nll:
            solved = Term(cross_entropy(), token_mean, chosen.solved_nll)
            made = with_term(made, "solved", solved, lambda item: item.trajectory.success)
        return made

    return Recipe(options, whole, critic=critic, spare=spare)


def with_term(stage: Stage, name: str, term: Term, includes: Callable[[Credited], bool]) -> Stage:
    """The stage with a term more, on the policy's tokens of the trajectories that `includes` names."""

    def samples(credited: Sequence[Credited]) -> list[Sample]:
        chosen = [includes(item) for item in credited]
        made = []
        for sample in stage.samples(credited):
            included_T = sample.include.get(PG, np.zeros(len(sample.ids_T), np.float32))
            include_T = included_T * np.float32(chosen[sample.trajectory])
            made.append(replace(sample, include={**sample.include, name: include_T}))
        return made

    return replace(stage, samples=samples, terms={**stage.terms, name: term})
