"""Which tasks an iteration works on: seeded epochs, every task once an epoch, the position in the checkpoint.

    tasks a b c, 2 an iteration:   [c a] [b | a] [b c] ...      "|" is where the second epoch begins

The order depends on (seed, epoch) alone. A checkpoint carries a fingerprint of the task list, so that a run
is not continued on another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxagent.errors import ConfigError, DataError
from jaxagent.plan import Plan
from jaxagent.types import Group, Metrics, Prompt, Task


def fingerprint(names: Sequence[str]) -> str:
    """Short hash of a list of names and their order."""
    return hashlib.sha256("\0".join(names).encode()).hexdigest()[:16]


class Epochs:
    """Endless indices 0..size-1: a seeded permutation an epoch. Owns its position."""

    def __init__(self, size: int, *, seed: int, fingerprint: str):
        self._size, self._seed, self._fingerprint = size, seed, fingerprint
        self.epoch, self.position = 0, 0

    def take(self, n: int) -> list[int]:
        """The next n indices; an epoch's rest comes first, then the start of the next one."""
        taken: list[int] = []
        while len(taken) < n:
            rest = self._order()[self.position : self.position + n - len(taken)]
            taken += rest.tolist()
            self.position += len(rest)
            if self.position == self._size:
                self.epoch, self.position = self.epoch + 1, 0
        return taken

    def state(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "position": self.position,
            "seed": self._seed,
            "size": self._size,
            "fingerprint": self._fingerprint,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken. Refuses another list or another seed: the order would be another."""
        for name, mine in (("fingerprint", self._fingerprint), ("seed", self._seed), ("size", self._size)):
            if state[name] != mine:
                raise DataError(
                    f"the checkpoint was written with data {name} {state[name]!r}, this run has {mine!r}; "
                    "resume with the same tasks and seed, or start another run folder"
                )
        self.epoch, self.position = int(state["epoch"]), int(state["position"])

    def _order(self) -> np.ndarray:
        return np.random.default_rng([self._seed, self.epoch]).permutation(self._size)


def task_names(pool: Sequence[Task], *, tasks: int, rollouts: int) -> list[str]:
    """The ids of a pool that `tasks` x `rollouts` episodes an iteration may come from. Raises if they cannot."""
    if not pool:
        raise ConfigError("the task list is empty; check the split and the difficulty filter")
    if tasks < 1 or rollouts < 1:
        raise ConfigError(f"tasks={tasks}, rollouts={rollouts} an iteration; expected 1 or more of each")
    names = [task.task_id for task in pool]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})[:3]
        raise DataError(f"task ids appear twice: {', '.join(twice)}; a group is known by its task id")
    return names


class TaskSource:
    """A stage's source of plans: `tasks` tasks an iteration, `rollouts` episodes of each."""

    def __init__(
        self,
        pool: Sequence[Task],
        *,
        tasks: int,
        rollouts: int,
        seed: int = 0,
        prompt: Callable[[Prompt], Prompt] | None = None,
    ):
        names = task_names(pool, tasks=tasks, rollouts=rollouts)
        self._pool, self._tasks, self._rollouts, self._prompt = tuple(pool), tasks, rollouts, prompt
        self._epochs = Epochs(len(pool), seed=seed, fingerprint=fingerprint(names))

    def next(self, iteration: int) -> list[Plan]:
        return self.draw()

    def draw(self) -> list[Plan]:
        """The next tasks, whatever the iteration: a refill asks more than once in one."""
        chosen = [self._pool[i] for i in self._epochs.take(self._tasks)]
        return [Plan(task, self._rollouts, self._prompt) for task in chosen]

    def observe(self, groups: Sequence[Group]) -> Metrics:
        return {"data/epoch": self._epochs.epoch + self._epochs.position / len(self._pool)}

    def state(self) -> Mapping[str, Any]:
        return self._epochs.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._epochs.restore(state)

    def close(self) -> None:
        """Nothing is held."""


def easier(tasks: Sequence[Task], difficulty: int) -> list[Task]:
    """Tasks up to a difficulty, e.g. AppWorld's 1 and 2: level 3 hurts when trained on (LOOP)."""
    kept = [task for task in tasks if task.difficulty <= difficulty]
    if not kept:
        levels = sorted({task.difficulty for task in tasks})
        raise ConfigError(f"no task has difficulty <= {difficulty}; the list has {levels}")
    return kept
