"""GVPO: group verification policy optimisation. The execution status of every code step corrects its credit.

    A_i = R_i - mean of the group;   in a step whose code failed:   A = 0 → -b    A < 0 → (1 + b) A    A > 0 → 0

Shaping comes before any filter: the failed steps of a group without variance still receive -b. Clip 0.2/0.28, mean
over tokens of a trajectory, then over trajectories; no KL, no standard deviation. (Group Variance Policy
Optimization is another method of the same name.)
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from jaxagent.batch.targets import policy_samples, seq_mean_token_mean
from jaxagent.credit.group import group_mean, leave_one_out, per_group
from jaxagent.credit.gvpo import gvpo
from jaxagent.learn.terms import clipped_pg
from jaxagent.recipes.base import Materials
from jaxagent.recipes.credit import SaltOptions
from jaxagent.recipes.policy import PolicyOptions, policy_recipe, policy_update, task_source
from jaxagent.recipes.rewards import returns_of
from jaxagent.recipes.unread import refuse_unread
from jaxagent.stage import Stage, Term

BASES = {"group_mean": per_group(group_mean), "leave_one_out": per_group(leave_one_out)}


class GvpoOptions(PolicyOptions):
    """b: strength of the correction. shape: mult is the paper's; add, add_all, mask and none are its ablations.

    api_error_is_fail: a step that ran and answered an error as data, e.g. {"error": …}, failed too.

    salt: SALT under the correction, e.g. {history: 3} (recipes/credit.py).
    """

    iterations: int = Field(144, ge=1)
    base: Literal["group_mean", "leave_one_out"] = "group_mean"
    b: float = Field(0.2, ge=0)
    shape: Literal["mult", "add", "add_all", "mask", "none"] = "mult"
    invalid_is_fail: bool = True
    api_error_is_fail: bool = False
    salt: SaltOptions | None = None
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.28, gt=0)
    learning_rate: float = Field(1e-5, gt=0)
    weight_decay: float = Field(0.0, ge=0)

    @model_validator(mode="after")
    def _shapes(self) -> GvpoOptions:
        refuse_unread(self, "b", read=self.shape not in ("mask", "none"), when="shape mult, add or add_all")
        fails = ("invalid_is_fail", "api_error_is_fail")
        refuse_unread(self, *fails, read=self.shape != "none", when="a shape other than none")
        return self


def stage(options: GvpoOptions, materials: Materials) -> Stage:
    base = BASES[options.base] if options.salt is None else options.salt.over(BASES[options.base])
    return Stage(
        name=materials.name,
        source=task_source(options, materials),
        iterations=options.iterations,
        reward=returns_of(options.reward),
        credit=gvpo(
            base,
            b=options.b,
            shape=options.shape,
            invalid_is_fail=options.invalid_is_fail,
            api_error_is_fail=options.api_error_is_fail,
        ),
        samples=policy_samples,
        terms={"pg": Term(clipped_pg(options.clip_low, options.clip_high), seq_mean_token_mean)},
        needs=("old",) if options.off_policy else (),
        sampling=materials.sampling,
        update=policy_update(options),
    )


RECIPE = policy_recipe(GvpoOptions, stage)
