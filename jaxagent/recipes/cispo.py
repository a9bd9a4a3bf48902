"""CISPO: clips the weight of a token, not its update, so that no token loses its gradient (arXiv 2506.13585).

    loss = -(1 / tokens) sum of sg(clip(rho, 1 - low, 1 + high)) A log pi

Advantages are GRPO's. There is no lower bound (low = 1); the upper one is 1.28.
"""

from __future__ import annotations

from pydantic import Field

from jaxagent.learn.terms import cispo
from jaxagent.recipes.base import Materials
from jaxagent.recipes.group import AggregateName, GroupOptions, group_stage
from jaxagent.recipes.policy import policy_recipe
from jaxagent.stage import Stage


class CispoOptions(GroupOptions):
    """clip_low, clip_high: distances of the bounds from 1; clip_low 1 is no lower bound."""

    aggregate: AggregateName = "token_mean"
    clip_low: float = Field(1.0, gt=0, le=1)
    clip_high: float = Field(0.28, gt=0)


def stage(options: CispoOptions, materials: Materials) -> Stage:
    return group_stage(options, materials, cispo(options.clip_low, options.clip_high))


RECIPE = policy_recipe(CispoOptions, stage)
