"""Supervised fine-tuning on demonstrations: the warm start of a policy that cannot act yet.

    loss = -(1/sum w) sum over assistant tokens of w log p        w = 0 on failed steps with `mask_errors`

Demonstrations come from the environment's scripted expert, or from a file of conversations. `sloppiness` is the share
of expert episodes with a seeded mistake: a policy warm-started on them errs, recovers and is worth improving by RL.
`keep: success` makes it rejection-sampling fine-tuning on them (recipe `rft` samples from the policy itself): failed
episodes are left out. With `chain_len` the expert plays chains of a scenario's tasks with a library of functions:
SAGE's cold start. Kept are then chains that are solved throughout, each later task by a function of an earlier one.

`drills` mixes in copy drills, and `literal_weight` counts quoted names and digits more; both are for models trained
from scratch, which otherwise learn to copy late or never.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Literal

from pydantic import Field, model_validator

from jaxagent.batch.targets import imitation_samples, seq_mean_token_mean, token_mean
from jaxagent.data.chains import scenarios
from jaxagent.data.conversations import conversation, read_conversations
from jaxagent.data.demos import DemoSource
from jaxagent.data.drills import drill
from jaxagent.data.literals import literal_weight
from jaxagent.data.selection import Select, selection, selection_metrics, skilled_chains, solved
from jaxagent.errors import DataError
from jaxagent.learn.terms import cross_entropy
from jaxagent.recipes.base import Materials, Recipe
from jaxagent.recipes.steps import OptimizerOptions, single_steps
from jaxagent.recipes.unread import refuse_unread
from jaxagent.skills.hand_on import HEADINGS, ChainExpert, handing_on
from jaxagent.stage import Stage, Term
from jaxagent.types import ExecStatus, Group, Metrics, Task, Trajectory

WEIGHTS = {"token": token_mean, "trajectory": seq_mean_token_mean}


class SftOptions(OptimizerOptions):
    """iterations: optimiser steps, of `batch` conversations each.

    demonstrations: expert episodes to play, tasks taken from the start of the training split, round and round.
    file: JSON Lines of conversations instead of expert play (data/conversations.py).
    mask_errors: failed steps stay in the context and get weight 0; a file must say which failed (`exec_status`).
    sloppiness, slips: chance of a flaw in an episode, and of a wrong word in a message, repaired at once.
    keep: all, or successes only; max_per_task of each (0: any number), with `balance` as many of each.
    chain_len: tasks of a chain, 1 for single episodes. library_text: how a chain's functions are shown.
    weigh: whether every token weighs the same, or every trajectory.
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
    keep: Literal["all", "success"] = "all"
    max_per_task: int = Field(0, ge=0)
    balance: bool = False
    chain_len: int = Field(1, ge=1)
    library_text: Literal["full", "plain"] = "full"
    weigh: Literal["token", "trajectory"] = "token"
    optimizer: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = Field(1e-5, gt=0)
    adam_learning_rate: float | None = None
    weight_decay: float = Field(0.0, ge=0)

    @model_validator(mode="after")
    def _fits(self) -> SftOptions:
        refuse_unread(self, "library_text", read=self.chain_len > 1, when="chain_len above 1")
        if self.file and (self.sloppiness or self.slips or self.drills):
            raise ValueError(
                "sloppiness, slips and drills belong to expert demonstrations; drop them or drop `file`"
            )
        if self.chain_len > 1 and (self.file or self.slips):
            raise ValueError(
                f"chain_len={self.chain_len} is for chains played by the expert, without slips; drop `file` and "
                "`slips`, or chain_len"
            )
        if self.slips and not self.mask_errors:
            raise ValueError("slips would be imitated; set mask_errors: true with them")
        if self.adam_learning_rate is not None and self.optimizer != "muon":
            raise ValueError("adam_learning_rate goes with optimizer muon; adamw has learning_rate alone")
        return self


def stage(options: SftOptions, materials: Materials) -> Stage:
    groups, kept = _groups(options, materials)
    _check_lengths(groups, materials.row)
    weigh = literal_weight(materials.renderer.tokenizer, options.literal_weight)
    return Stage(
        name=materials.name,
        source=DemoSource(groups, groups=options.batch, seed=materials.seed),
        iterations=options.iterations,
        measure=lambda groups, samples: kept,
        samples=partial(
            imitation_samples,
            mask_errors=options.mask_errors,
            token_weight=weigh if options.literal_weight != 1 else None,
        ),
        terms={"ce": Term(cross_entropy(), WEIGHTS[options.weigh])},
        update=replace(
            single_steps(options),
            optimizer=options.optimizer,
            adam_learning_rate=options.adam_learning_rate,
        ),
    )


def _groups(options: SftOptions, materials: Materials) -> tuple[list[Group], Metrics]:
    """What is learnt from, and how much of the episodes that is."""
    found = _episodes(options, materials)
    select = _select(options)
    kept = [Group(episode.task, (episode,)) for episode in select(found)]
    if not kept:
        raise DataError(
            f"not one of {len(found)} demonstrations is kept: none is a success"
            + (" that reuses a function of its chain" if options.chain_len > 1 else "")
            + ". A file says which are (`success: true`); an expert that always errs has nothing to show"
        )
    whole = [Group(episode.task, (episode,)) for episode in found]
    metrics = selection_metrics(whole, select) if options.keep == "success" else {}
    extra = 0 if options.file else round(len(kept) * options.drills / (1 - options.drills))
    return [*kept, *(_drill_group(i, materials) for i in range(extra))], metrics


def _select(options: SftOptions) -> Select:
    wanted = skilled_chains(options.chain_len) if options.chain_len > 1 else solved
    return selection(
        wanted if options.keep == "success" else list, most=options.max_per_task, balance=options.balance
    )


def _episodes(options: SftOptions, materials: Materials) -> list[Trajectory]:
    if options.file:
        found = read_conversations(Path(options.file), materials.renderer)
        if options.mask_errors and all(step.exec_status is ExecStatus.OK for t in found for step in t.steps):
            raise DataError(
                f"mask_errors, but no message of {options.file} has failed: give the failed ones an exec_status "
                '(e.g. "runtime_error"), or drop mask_errors'
            )
        return found
    if options.chain_len > 1:
        return _chains(options, materials)
    tasks = [materials.tasks[i % len(materials.tasks)] for i in range(options.demonstrations)]
    shown = materials.demonstrate(tasks, options.sloppiness, options.slips)
    return [episode for group in shown for episode in group.trajectories]


def _chains(options: SftOptions, materials: Materials) -> list[Trajectory]:
    """As many chains as give `demonstrations` episodes, scenario by scenario, each in an order of its own."""
    known = scenarios(materials.tasks, options.chain_len)
    expert = ChainExpert(
        materials.spec,
        materials.renderer,
        handing_on(heading=HEADINGS[options.library_text]),
        options.sloppiness,
        materials.seed,
    )
    episodes = []
    for number in range(-(-options.demonstrations // options.chain_len)):
        members = known[number % len(known)]
        tasks = Random(f"{materials.seed}/{number}").sample(members, options.chain_len)
        episodes += expert.play(tasks, number)
    return episodes


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
