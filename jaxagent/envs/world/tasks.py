"""Which tasks there are: splits of both levels, and how a task becomes a world with a goal.

A scenario is a kind of task with a seed; its three tasks differ in the world. Ids are `<scenario>_<n>`,
n = 1, 2, 3. The easy level is practically unlimited: tasks are made when they are asked for.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from jaxagent.envs.world.easy import EASY_CHALLENGE, EASY_KINDS, build_easy
from jaxagent.envs.world.engine import World
from jaxagent.envs.world.full import FULL_KINDS, FULL_SPLITS, build_full
from jaxagent.envs.world.goal import Goal
from jaxagent.errors import ConfigError
from jaxagent.types import Task

LEVELS = {"full": "world", "easy": "world-easy"}  # level -> environment name
SPLITS = ("train", "dev", "test_normal", "test_challenge")
EASY_SCENARIOS = {"train": 20_000, "dev": 100, "test_normal": 100, "test_challenge": 100}


@dataclass(frozen=True)
class TaskRange(Sequence[Task]):
    """The tasks of a split, scenario by scenario; neighbouring scenarios are of different kinds."""

    level: str
    split: str
    kinds: tuple[tuple[str, int], ...]  # kind and difficulty of scenario i, i taken modulo the length
    scenarios: int

    def __len__(self) -> int:
        return 3 * self.scenarios

    @overload
    def __getitem__(self, index: int) -> Task: ...

    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...

    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"task {index} of a split of {len(self)}")
        number, variation = divmod(index % len(self), 3)
        kind, difficulty = self.kinds[number % len(self.kinds)]
        letter = self.split.removeprefix("test_")[0]  # t d n c
        scenario = f"{kind}{letter}{number}"
        return Task(
            task_id=f"{scenario}_{variation + 1}",
            env=LEVELS[self.level],
            split=self.split,
            scenario=scenario,
            difficulty=difficulty,
            type=kind,
            seed=number,
        )


def tasks(level: str, split: str) -> TaskRange:
    """The tasks of a split, always the same ones in the same order."""
    if split not in SPLITS:
        raise ConfigError(f"the embedded world has no split {split!r}; known: {', '.join(SPLITS)}")
    if level == "full":
        kinds = FULL_SPLITS[split]
        return TaskRange(
            level, split, tuple((kind, FULL_KINDS[kind].difficulty) for kind in kinds), len(kinds)
        )
    known = EASY_CHALLENGE if split == "test_challenge" else EASY_KINDS
    return TaskRange(level, split, tuple((kind, known[kind][0]) for kind in known), EASY_SCENARIOS[split])


def build(task: Task) -> tuple[World, Goal]:
    """The world and the goal of a task: a pure function of its id, kind and split."""
    seed = f"{task.env}:{task.split}:{task.task_id}"
    if task.env == LEVELS["easy"]:
        return build_easy(task.type, seed, held_out=task.split != "train")
    return build_full(task.type, random.Random(seed), random.Random(f"{task.env}:{task.scenario}"))
