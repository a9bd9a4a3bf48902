"""How a recipe's samples become optimiser steps: the options that the recipes share."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from pydantic import Field

from jaxagent.records import Record
from jaxagent.stage import Update


class OptimizerOptions(Record):
    """schedule: of the learning rate, over the stage's optimiser steps, after `warmup_steps`."""

    learning_rate: float = Field(1e-6, gt=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = Field(0, ge=0)
    weight_decay: float = Field(0.01, ge=0)
    max_grad_norm: float = Field(1.0, ge=0)


class StepOptions(OptimizerOptions):
    """Of recipes whose policy plays episodes. minibatch: episodes of an optimiser step; 0 is all of them."""

    epochs: int = Field(1, ge=1)
    minibatch: int = Field(0, ge=0)


def single_steps(options: OptimizerOptions) -> Update:
    """One optimiser step an iteration, on all its samples."""
    return Update(
        learning_rate=options.learning_rate,
        schedule=options.schedule,
        warmup_steps=options.warmup_steps,
        steps_per_iteration=1,
        weight_decay=options.weight_decay,
        max_grad_norm=options.max_grad_norm,
    )


def update_of(options: StepOptions, episodes: int) -> Update:
    """episodes: of an iteration, at most. Fewer of them make fewer steps: a decay then ends a little above zero."""
    return replace(
        single_steps(options),
        steps_per_iteration=options.epochs * math.ceil(episodes / (options.minibatch or episodes)),
        epochs=options.epochs,
        minibatch=options.minibatch,
    )
