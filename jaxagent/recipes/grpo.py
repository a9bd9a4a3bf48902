"""GRPO, with or without KL: the group's z-score as advantage, token ratio, symmetric clip (arXiv 2402.03300).

    A_i = (R_i - mean of the group) / (std of the group + eps)
    loss = mean over trajectories of the mean over tokens of -min(rho A, clip(rho, 1 - low, 1 + high) A)

Dr. GRPO (Liu et al. 2025) is `std: false` with `aggregate: fixed_len_sum`.
"""

from __future__ import annotations

from pydantic import Field

from jaxagent.learn.terms import clipped_pg
from jaxagent.recipes.base import Materials
from jaxagent.recipes.group import GroupOptions, group_stage
from jaxagent.recipes.policy import policy_recipe
from jaxagent.stage import Stage


class GrpoOptions(GroupOptions):
    """dual_clip: where A < 0 the objective is at least dual_clip x A (verl: 3); 0 is off."""

    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.2, gt=0)
    dual_clip: float = Field(0.0, ge=0)


def stage(options: GrpoOptions, materials: Materials) -> Stage:
    return group_stage(
        options,
        materials,
        clipped_pg(options.clip_low, options.clip_high, dual=options.dual_clip or None),
    )


RECIPE = policy_recipe(GrpoOptions, stage)
