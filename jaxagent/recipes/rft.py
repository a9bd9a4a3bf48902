"""Rejection-sampling fine-tuning and expert iteration: the policy imitates its own successes.

    sample `group_size` rollouts of every task; keep those with R = 1, at most `max_per_task` of a task
    loss = -(1/sum w) sum over the kept rollouts' tokens of w log p         w = 0 on failed steps with `mask_errors`

One iteration is RFT: what the policy of the start samples is learnt in `epochs` passes of minibatches. More are expert
iteration: every iteration samples from the policy that the one before has made. With `tries` above `group_size`, tasks
without a success are sampled again, `group_size` at a time, until they have one or were tried so often.

`chain_len` above 1 samples SAGE's chains and keeps those that are solved throughout, each later task by a function of
an earlier one. Stored and expert episodes are the sft recipe's, with `keep: success`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from pydantic import Field, model_validator

from jaxagent.batch.targets import imitation_samples
from jaxagent.data.chains import ChainShape, ChainSource
from jaxagent.data.selection import Select, selecting, selection, selection_metrics, skilled_chains, solved
from jaxagent.data.tasks import TaskSource
from jaxagent.learn.terms import cross_entropy
from jaxagent.plan import Plan
from jaxagent.recipes.base import Materials, Recipe
from jaxagent.recipes.rewards import OutcomeName, RewardOptions, returns_of
from jaxagent.recipes.sft import WEIGHTS
from jaxagent.recipes.steps import StepOptions, update_of
from jaxagent.recipes.unread import refuse_unread
from jaxagent.skills.hand_on import HEADINGS, handing_on
from jaxagent.stage import FollowUp, Source, Stage, Term
from jaxagent.types import Group


class RftOptions(StepOptions):
    """tasks: of an iteration; with chains, scenarios. reward: logged only, for the raw verdict selects.

    tries: rollouts of a task without a success; 0 is `group_size`. max_per_task: 0 keeps every success.
    balance: tasks with fewer successes than others are repeated. weigh: by token, or every trajectory the same.
    """

    iterations: int = Field(1, ge=1)
    tasks: int = Field(90, ge=1)
    group_size: int = Field(20, ge=2)
    reward: OutcomeName | RewardOptions = "success"
    tries: int = Field(0, ge=0)
    max_per_task: int = Field(20, ge=0)
    balance: bool = False
    mask_errors: bool = False
    weigh: Literal["token", "trajectory"] = "token"
    chain_len: int = Field(1, ge=1)
    library_text: Literal["full", "plain"] = "full"
    epochs: int = Field(3, ge=1)
    minibatch: int = Field(16, ge=0)
    learning_rate: float = Field(5e-5, gt=0)
    weight_decay: float = Field(0.0, ge=0)

    @model_validator(mode="after")
    def _fits(self) -> RftOptions:
        refuse_unread(self, "library_text", read=self.chain_len > 1, when="chain_len above 1")
        if self.tries and self.chain_len > 1:
            raise ValueError("tries are for single tasks; a chain is sampled group_size times")
        if self.tries and self.tries < self.group_size:
            raise ValueError(
                f"tries={self.tries} is below group_size={self.group_size}; raise it, or 0 for no more"
            )
        return self


def stage(options: RftOptions, materials: Materials) -> Stage:
    source, follow_up = _source(options, materials)
    wanted = skilled_chains(options.chain_len) if options.chain_len > 1 else solved
    select: Select = selection(wanted, most=options.max_per_task, balance=options.balance)
    return Stage(
        name=materials.name,
        source=source,
        iterations=options.iterations,
        measure=lambda groups, samples: selection_metrics(groups, select),
        reward=returns_of(options.reward),
        filter=selecting(select),
        samples=partial(imitation_samples, mask_errors=options.mask_errors),
        terms={"ce": Term(cross_entropy(), WEIGHTS[options.weigh])},
        sampling=materials.sampling,
        follow_up=follow_up,
        update=update_of(options, _most(options)),
    )


def _most(options: RftOptions) -> int:
    """Episodes that an iteration may keep; few tasks give as many successes."""
    return options.tasks * options.chain_len * (options.max_per_task or options.group_size)


def _source(options: RftOptions, materials: Materials) -> tuple[Source, FollowUp | None]:
    if options.chain_len == 1:
        tasks = TaskSource(
            materials.tasks, tasks=options.tasks, rollouts=options.group_size, seed=materials.seed
        )
        return tasks, again(options.group_size, options.tries)
    shape = ChainShape(options.tasks, options.group_size, options.chain_len)
    chains = ChainSource(
        materials.tasks, shape, handing_on(heading=HEADINGS[options.library_text]), seed=materials.seed
    )
    return chains, chains.follow_up


def again(rollouts: int, tries: int) -> Callable[[Sequence[Group]], list[Plan]] | None:
    """Ask for more rollouts of every task without a success, until it was tried `tries` times."""
    if tries <= rollouts:
        return None

    def follow_up(groups: Sequence[Group]) -> list[Plan]:
        plans = []
        for task in {group.task.task_id: group.task for group in groups}.values():
            of_task = [group for group in groups if group.task.task_id == task.task_id]
            tried = sum(len(group.trajectories) + len(group.dropped) for group in of_task)
            if tried < tries and not any(t.success for group in of_task for t in group.trajectories):
                plans.append(Plan(task, min(rollouts, tries - tried), first=tried))
        return plans

    return follow_up


RECIPE = Recipe(RftOptions, stage)
