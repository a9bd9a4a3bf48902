"""DAPO: GRPO at scale (arXiv 2503.14476). No KL, and four changes:

    clip-higher         bounds .8 and 1.28
    dynamic sampling    batches of tasks until `tasks` groups have rollouts that differ; others are not trained on
    token mean          every token of the minibatch weighs the same
    overlong            reward: {overlong: {limit, buffer}} is the linear penalty, {overlong: {kind: filter, limit}} the
                        filter

A group is trained whole or not at all; surplus groups are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field, model_validator

from jaxagent.credit.filters import METRICS, varies, zero_std
from jaxagent.data.refill import Refill
from jaxagent.learn.terms import clipped_pg
from jaxagent.recipes.base import Materials
from jaxagent.recipes.credit import refuse_dropped_groups
from jaxagent.recipes.group import AggregateName, GroupOptions, group_credit, group_stage
from jaxagent.recipes.policy import drawn, policy_recipe
from jaxagent.recipes.unread import refuse_unread
from jaxagent.stage import Stage
from jaxagent.types import Group, Metrics, Sample


class DapoOptions(GroupOptions):
    """dynamic: sample until there are enough groups. informative: what must differ within a group; with a continuous
    shaping term in the reward the return always does, so success is the default.

    draw: tasks of a batch; 0 is `tasks`. max_gen_batches: batches an iteration may take. on_exhausted: when they were
    not enough, train on what there is ("partial"), or end the run ("error", as verl does).
    """

    aggregate: AggregateName = "token_mean"
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.28, gt=0)
    dynamic: bool = True
    informative: Literal["success", "reward"] = "success"
    draw: int = Field(0, ge=0)
    max_gen_batches: int = Field(10, ge=1)
    on_exhausted: Literal["partial", "error"] = "partial"

    @model_validator(mode="after")
    def _dynamic_fits(self) -> DapoOptions:
        sampling = ("informative", "draw", "max_gen_batches", "on_exhausted")
        refuse_unread(self, *sampling, read=self.dynamic, when="dynamic: true")
        if self.dynamic:
            refuse_dropped_groups(self, "dynamic sampling")
        if self.dynamic and self.informative == "reward" and self.kl_in == "reward":
            raise ValueError(
                "informative=reward asks for returns while rollouts are still collected, kl_in=reward takes the KL off "
                "them after scoring; use informative: success, or kl_in: loss"
            )
        return self


def stage(options: DapoOptions, materials: Materials) -> Stage:
    plain = group_stage(options, materials, clipped_pg(options.clip_low, options.clip_high))
    if not options.dynamic:
        return plain
    batch, metric = options.draw or options.tasks, METRICS[options.informative]
    source = drawn(options, materials, batch)
    refill = Refill(
        source.draw,
        batch=batch,
        wanted=options.tasks,
        informative=varies(metric),
        returns=plain.reward if options.informative == "reward" else None,
        batches=options.max_gen_batches,
        partial=options.on_exhausted == "partial",
    )

    def measure(groups: Sequence[Group], samples: Sequence[Sample]) -> Metrics:
        return refill.metrics(groups)

    return replace(
        plain,
        source=source,
        follow_up=refill,
        credit=zero_std(group_credit(options), metric=metric, limit=options.tasks),
        measure=measure,
    )


RECIPE = policy_recipe(DapoOptions, stage)
