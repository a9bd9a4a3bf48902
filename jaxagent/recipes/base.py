"""What a recipe is made of, and what it may build from.

A recipe is one file: a typed options record and a function `(options, materials) -> Stage`. It composes functions
of credit/, batch/ and learn/ by reference; the loop never learns its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxagent.chat.render import Renderer
from jaxagent.data.rollout_store import Origin
from jaxagent.envs.protocol import EnvSpec
from jaxagent.records import Record
from jaxagent.stage import Stage
from jaxagent.types import Group, Sampling, Task


@dataclass(frozen=True)
class Materials:
    """What a stage may be built from.

    name:        the stage's name in metrics and checkpoints.
    sampling:    the run's training-time sampling rule.
    row:         tokens of a training row; nothing longer can be learnt from. scored: those that can be trained on, 0
                 is all. spare: those that the recipe needs beside an episode.
    demonstrate: (tasks, sloppiness, slips) -> demonstration groups by the environment's scripted expert.
    origin:      what stored rollouts must have been sampled with; None checks nothing.
    """

    name: str
    spec: EnvSpec
    tasks: Sequence[Task]
    renderer: Renderer
    sampling: Sampling
    row: int
    seed: int
    demonstrate: Callable[[Sequence[Task], float, float], list[Group]]
    origin: Origin | None = None
    scored: int = 0
    spare: int = 0


@dataclass(frozen=True)
class Recipe:
    """options: the recipe's own configuration record; stage: builds the Stage from it.

    rolls_out: the stage learns from its own rollouts, so sampling and row shapes must fit each other.
    critic: whether these options need a value head; the model has one if any stage of the run does.
    spare: tokens that a training row must hold beyond an episode's context.
    """

    options: type[Record]
    stage: Callable[[Any, Materials], Stage]
    rolls_out: bool = True
    critic: Callable[[Any], bool] = lambda options: False
    spare: Callable[[Any], int] = lambda options: 0
