"""What the recipes with a value function share: their options, the value term, the optimiser of the head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

from pydantic import Field, model_validator

from jaxagent.batch.targets import token_mean
from jaxagent.batch.values import VALUE, value_samples
from jaxagent.learn.value import decaying, value_loss
from jaxagent.recipes.base import Materials, Recipe
from jaxagent.recipes.policy import PolicyOptions, policy_recipe, policy_update, task_source
from jaxagent.recipes.rewards import returns_of
from jaxagent.rewards.step_rewards import Rewards
from jaxagent.stage import Credit, Stage, Term, Update


class ValueOptions(PolicyOptions):
    """The shape of the head is the model's: `model.critic` of the run file.

    rewards: "outcome" pays the return at the last action token, and penalties where they were earned; "environment"
             pays what the environment paid at each step.
    value_coef, value_coef_last: weight of the value loss, at first and (None: the same) at the end of the stage.
    value_clip: how far a value may go from the old one, as clipping of the loss; 0 is off.
    value_min, value_max: values are held within them when advantages are computed.
    bootstrap_truncated: an episode that a budget cut goes on with the value of its last state, not with 0. A row must
             then hold a token more than the context: pack.length above rollout.context.
    critic_learning_rate: of the head; None is learning_rate.
    """

    group_size: int = Field(8, ge=1)
    rewards: Rewards = "outcome"
    value_coef: float = Field(0.5, gt=0)
    value_coef_last: float | None = Field(None, ge=0)
    value_clip: float = Field(0.2, ge=0)
    value_min: float | None = None
    value_max: float | None = None
    bootstrap_truncated: bool = False
    critic_learning_rate: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _range(self) -> ValueOptions:
        low, high = self.value_range
        if not low < high:
            raise ValueError(f"value_min={low:g} is not below value_max={high:g}; swap them, or drop one")
        return self

    @property
    def value_range(self) -> tuple[float, float]:
        return (
            -inf if self.value_min is None else self.value_min,
            inf if self.value_max is None else self.value_max,
        )


def value_term(options: ValueOptions) -> Term:
    """Mean over the tokens that have a value to learn, whatever the policy's aggregation is."""
    coef = options.value_coef
    if options.value_coef_last is not None:
        steps = options.iterations * policy_update(options).steps_per_iteration
        coef = decaying(options.value_coef, options.value_coef_last, steps)
    return Term(value_loss(options.value_clip), token_mean, coef)


def value_update(options: ValueOptions) -> Update:
    return replace(policy_update(options), critic_learning_rate=options.critic_learning_rate)


def united(*streams: Sequence[str]) -> tuple[str, ...]:
    """Each token stream once."""
    return tuple(dict.fromkeys(name for some in streams for name in some))


def value_stage(
    options: ValueOptions,
    materials: Materials,
    *,
    credit: Credit,
    terms: Mapping[str, Term],
    needs: Sequence[str],
    steps: bool = False,
) -> Stage:
    """A stage of these policy terms and the value term. needs: of the credit and of the terms. steps: see
    `value_samples`."""
    return Stage(
        name=materials.name,
        source=task_source(options, materials),
        iterations=options.iterations,
        reward=returns_of(options.reward),
        credit=credit,
        samples=partial(value_samples, terms=tuple(terms), steps=steps),
        terms={**terms, VALUE: value_term(options)},
        needs=tuple(needs),
        sampling=materials.sampling,
        update=value_update(options),
    )


def value_recipe(
    options: type[ValueOptions],
    stage: Callable[[Any, Materials], Stage],
    *,
    critic: Callable[[Any], bool] = lambda options: True,
) -> Recipe:
    """The recipe of a stage with a value function. critic: whether there is one, given the options."""

    def spare(chosen: ValueOptions) -> int:
        # The state after the last token is valued at a token behind it.
        return int(chosen.bootstrap_truncated and critic(chosen))

    return policy_recipe(options, stage, critic=critic, spare=spare)
