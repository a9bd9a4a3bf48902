"""GSPO: one ratio a trajectory, its geometric mean, with a narrow clip (arXiv 2507.18071).

    s_i = exp(mean over i's sampled tokens of log pi - log pi_old)
    loss = -mean over trajectories of min(s_i A_i, clip(s_i, 1 - 3e-4, 1 + 4e-4) A_i)

Every token of a trajectory gets the gradient s_i A_i / n_i. Only tokens that the policy sampled count in n_i. A
trajectory must lie in one training row.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from jaxagent.learn.terms import clipped_pg
from jaxagent.recipes.base import Materials
from jaxagent.recipes.group import GroupOptions, group_stage
from jaxagent.recipes.policy import policy_recipe
from jaxagent.stage import Stage


class GspoOptions(GroupOptions):
    """The clip is a thousandth of PPO's."""

    clip_low: float = Field(3e-4, gt=0, lt=1)
    clip_high: float = Field(4e-4, gt=0)

    @model_validator(mode="after")
    def _one_ratio_a_trajectory(self) -> GspoOptions:
        if self.aggregate != "seq_mean_token_mean":
            raise ValueError(
                f"aggregate={self.aggregate}: the tokens of a trajectory share one ratio, which only "
                "seq_mean_token_mean counts once; drop it"
            )
        return self


def stage(options: GspoOptions, materials: Materials) -> Stage:
    loss = clipped_pg(options.clip_low, options.clip_high, level="trajectory_geo")
    return group_stage(options, materials, loss)


RECIPE = policy_recipe(GspoOptions, stage)
