"""What the shared options `rollouts_from` and `replay` add to the stage of any recipe that has them."""

from __future__ import annotations

import math
from dataclasses import replace

from jaxagent.data.replay import ReplayRules, replayed
from jaxagent.data.stored import reads_a_store
from jaxagent.errors import ConfigError
from jaxagent.recipes.base import Materials
from jaxagent.recipes.policy import PolicyOptions
from jaxagent.records import Record
from jaxagent.stage import Stage


def with_stored(stage: Stage, options: Record, materials: Materials) -> Stage:
    """The stage as its recipe made it, or one that trains on stored rollouts, or one with a replay buffer."""
    if not isinstance(options, PolicyOptions):
        return stage
    if options.rollouts_from and options.replay:
        raise ConfigError(
            f"stage {stage.name}: rollouts_from trains on stored rollouts alone, there is nothing to replay beside "
            "them; drop one of the two (the epochs over a store see every group again)"
        )
    if options.rollouts_from:
        if not reads_a_store(stage.source.state()):
            raise ConfigError(
                f"stage {stage.name}: this recipe plans its own rollouts and takes no stored ones; drop rollouts_from"
            )
        return replace(stage, stored=True, follow_up=None)
    if options.replay is None:
        return stage
    rules = ReplayRules(**options.replay.model_dump(), iterations=stage.iterations, seed=materials.seed)
    made = replayed(stage, rules, to_sampler=options.mismatch.mode == "bypass")
    share = 1 - options.replay.fraction  # of the new ones in an update
    steps = stage.update.steps_per_iteration
    more = math.ceil(steps / share) if options.minibatch else steps
    return replace(made, update=replace(stage.update, steps_per_iteration=more))
