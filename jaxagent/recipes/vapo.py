"""VAPO: value-based PPO for long sequences (arXiv 2504.05118). Seven pieces, each of them an option here or elsewhere.

1 value pre-training     a stage of recipe `critic` before this one
2 decoupled GAE          lam_critic 1 for the value targets, another lam for the policy
3 length-adaptive lam    lam = max(0, 1 - 1 / (lam_alpha l)), l action tokens of the trajectory
4 clip-higher            .2 / .28
5 token-mean loss
6 imitation of successes L += solved_nll times the mean of -log p over the tokens of solved episodes
7 group sampling         more rollouts of fewer tasks
"""

from __future__ import annotations

from pydantic import Field

from jaxagent.batch.targets import token_mean
from jaxagent.credit.gae import GaeRule, gae
from jaxagent.learn.terms import clipped_pg
from jaxagent.recipes.base import Materials
from jaxagent.recipes.policy import PG
from jaxagent.recipes.values import ValueOptions, united, value_recipe, value_stage
from jaxagent.stage import Stage, Term


class VapoOptions(ValueOptions):
    """lam_alpha: 0 keeps lam at 1."""

    tasks: int = Field(8, ge=1)
    group_size: int = Field(16, ge=1)
    gamma: float = Field(1.0, ge=0, le=1)
    lam_alpha: float = Field(0.05, ge=0)
    lam_critic: float = Field(1.0, ge=0, le=1)
    whiten: bool = False
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.28, gt=0)
    solved_nll: float = Field(0.1, ge=0)


def stage(options: VapoOptions, materials: Materials) -> Stage:
    rule = GaeRule(
        gamma=options.gamma,
        lam_critic=options.lam_critic,
        adaptive=options.lam_alpha,
        whiten=options.whiten,
        value_range=options.value_range,
        rewards=options.rewards,
        bootstrap=options.bootstrap_truncated,
    )
    return value_stage(
        options,
        materials,
        credit=gae(rule),
        terms={PG: Term(clipped_pg(options.clip_low, options.clip_high), token_mean)},
        needs=united(("old",) if options.off_policy else (), rule.needs),
    )


RECIPE = value_recipe(VapoOptions, stage)
