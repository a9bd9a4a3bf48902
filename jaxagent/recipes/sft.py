"""Supervised fine-tuning on demonstrations: the warm start of a policy that cannot act yet.

    loss = -(1/sum w) sum over assistant tokens of w log p        w = 0 on failed steps with `mask_errors`

Demonstrations come from the environment's scripted expert, or from a file of conversations. `sloppiness` is the share
of expert episodes with a seeded mistake: a policy warm-started on them errs, recovers and is worth improving by RL.
`drills` mixes in copy drills, and `literal_weight` counts quoted names and digits more; both are for models trained
from scratch, which otherwise learn to copy late or never.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Literal

from pydantic import Field, model_validator

from jaxagent.batch.targets import imitation_samples, token_mean
from jaxagent.config import Record
from jaxagent.data.conversations import conversation, read_conversations
from jaxagent.data.demos import DemoSource
from jaxagent.data.drills import drill
from jaxagent.data.literals import literal_weight
from jaxagent.errors import DataError
from jaxagent.learn.terms import cross_entropy
from jaxagent.recipes.base import Materials, Recipe
from jaxagent.stage import Stage, Term, Update
from jaxagent.types import ExecStatus, Group, Task


class SftOptions(Record):
    """iterations: optimiser steps, of `batch` conversations each.

    demonstrations: expert episodes to play, tasks taken from the start of the training split, round and round.
    file: JSON Lines of conversations instead of expert play (data/conversations.py).
    mask_errors: failed steps stay in the context and get weight 0; a file must say which failed (`exec_status`).
    sloppiness, slips: chance of a flaw in an episode, and of a wrong word in a message, repaired at once.
    adam_learning_rate: with muon, the rate of what is not a matrix.
    """

    iterations: int = Field(300, ge=1)
    batch: int = Field(16, ge=1)
    demonstrations: int = Field(1000, ge=1)
    file: str = ""
    sloppiness: float = Field(0.0, ge=0, le=1)
    slips: float = Field(0.0, ge=0, le=1)
    drills: float = Field(0.0, ge=0, lt=1)
    literal_weight: float = Field(1.0, gt=0)
    mask_errors: bool = False
    optimizer: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = Field(1e-5, gt=0)
    adam_learning_rate: float | None = None
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = Field(0, ge=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, ge=0)

    @model_validator(mode="after")
    def _fits(self) -> SftOptions:
        if self.file and (self.sloppiness or self.slips or self.drills):
            raise ValueError(
                "sloppiness, slips and drills belong to expert demonstrations; drop them or drop `file`"
            )
        if self.slips and not self.mask_errors:
            raise ValueError("slips would be imitated; set mask_errors: true with them")
        if self.adam_learning_rate is not None and self.optimizer != "muon":
            raise ValueError("adam_learning_rate goes with optimizer muon; adamw has learning_rate alone")
        return self


def stage(options: SftOptions, materials: Materials) -> Stage:
    groups = _groups(options, materials)
    _check_lengths(groups, materials.row)
    weigh = literal_weight(materials.renderer.tokenizer, options.literal_weight)
    return Stage(
        name=materials.name,
        source=DemoSource(groups, groups=options.batch, seed=materials.seed),
        iterations=options.iterations,
        samples=partial(
            imitation_samples,
            mask_errors=options.mask_errors,
            token_weight=weigh if options.literal_weight != 1 else None,
        ),
        terms={"ce": Term(cross_entropy(), token_mean)},
        update=Update(
            learning_rate=options.learning_rate,
            optimizer=options.optimizer,
            adam_learning_rate=options.adam_learning_rate,
            schedule=options.schedule,
            warmup_steps=options.warmup_steps,
            steps_per_iteration=1,
            weight_decay=options.weight_decay,
            max_grad_norm=options.max_grad_norm,
        ),
    )


def _groups(options: SftOptions, materials: Materials) -> Sequence[Group]:
    if options.file:
        found = read_conversations(Path(options.file), materials.renderer)
        if options.mask_errors and all(step.exec_status is ExecStatus.OK for t in found for step in t.steps):
            raise DataError(
                f"mask_errors, but no message of {options.file} has failed: give the failed ones an exec_status "
                '(e.g. "runtime_error"), or drop mask_errors'
            )
        return [Group(trajectory.task, (trajectory,)) for trajectory in found]
    tasks = [materials.tasks[i % len(materials.tasks)] for i in range(options.demonstrations)]
    shown = materials.demonstrate(tasks, options.sloppiness, options.slips)
    extra = round(len(shown) * options.drills / (1 - options.drills))
    return [*shown, *(_drill_group(i, materials) for i in range(extra))]


def _check_lengths(groups: Sequence[Group], row: int) -> None:
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    longest = max(trajectories, key=lambda trajectory: max(len(s.ids_T) for s in trajectory.segments))
    tokens = max(len(segment.ids_T) for segment in longest.segments)
    if tokens > row:
        raise DataError(
            f"demonstration {longest.traj_id} has {tokens} tokens, a training row holds {row}; raise pack.length to "
            "at least that, or shorten the demonstrations"
        )


def _drill_group(index: int, materials: Materials) -> Group:
    task = Task(task_id=f"drill-{index}", env="drills", split="train", seed=index)
    messages = drill(Random(f"{materials.seed}/{index}"))
    return Group(task, (conversation(messages, materials.renderer, task=task),))


RECIPE = Recipe(SftOptions, stage, rolls_out=False)
