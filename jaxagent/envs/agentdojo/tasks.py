"""The tasks by name, without the package: its suites number their user tasks and their injection tasks.

The benchmark has no training split. `train` and `test` are ours: every suite's user tasks, shuffled by a seed and cut
in the middle.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from jaxagent.errors import ConfigError
from jaxagent.types import Task

USER_TASKS: Mapping[str, int] = {"workspace": 40, "travel": 20, "banking": 16, "slack": 21}
"""Suite -> number of user tasks, numbered from 0; the same in all versions from v1 to v1.2.2."""

INJECTION_TASKS: Mapping[str, range] = {
    "workspace": range(14),
    "travel": range(7),
    "banking": range(9),
    "slack": range(1, 6),
}
"""Suite -> numbers of the injection tasks from v1.2 on."""

HALVES = ("train", "test")


def tasks(split: str, *, seed: int, attacked: bool) -> list[Task]:
    """User tasks of a suite, of all, or of a half; under attack every pair of a user and an injection task."""
    known = (*HALVES, *USER_TASKS, "all")
    if split not in known:
        raise ConfigError(f"agentdojo has no split {split!r}; its splits are {', '.join(known)}")
    found = []
    for suite in (split,) if split in USER_TASKS else USER_TASKS:
        for number in _numbers(split, suite, seed):
            injections = INJECTION_TASKS[suite] if attacked else (None,)
            found += [_task(split, suite, number, injection) for injection in injections]
    return found


def _numbers(split: str, suite: str, seed: int) -> list[int]:
    numbers = list(range(USER_TASKS[suite]))
    if split not in HALVES:
        return numbers
    random.Random(f"{seed}/{suite}").shuffle(numbers)
    middle = len(numbers) // 2
    return sorted(numbers[:middle] if split == "train" else numbers[middle:])


def _task(split: str, suite: str, number: int, injection: int | None) -> Task:
    names = {"suite": suite, "user_task": f"user_task_{number}"}
    if injection is not None:
        names["injection_task"] = f"injection_task_{injection}"
    return Task("/".join(names.values()), "agentdojo", split, scenario=suite, type=suite, meta=names)
