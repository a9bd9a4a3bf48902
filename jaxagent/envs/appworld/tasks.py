"""AppWorld's data as far as the trainer's process needs it: task ids, difficulties, stored solutions.

Read from the files, without the package. Nothing of what is read here may be published in plain text
(docs/environments/appworld.md).
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

from jaxagent.errors import ConfigError
from jaxagent.types import Task

SPLITS = ("train", "dev", "test_normal", "test_challenge")
CANARY = "# Canary String:"
FOLDERS = ("base_dbs", "api_docs", "datasets", "tasks")


def check_root(root: Path) -> Path:
    """The data folder of an AppWorld root. Raises ConfigError that says what is missing and how to get it."""
    data = root / "data"
    missing = [name for name in FOLDERS if not (data / name).is_dir()]
    if missing:
        raise ConfigError(f"AppWorld's data: {data} has no {', no '.join(missing)}; {how_to_fetch(root)}")
    return data


def how_to_fetch(root: Path | str) -> str:
    return f"run `appworld download data --root {root}` with AppWorld's own Python (needs the internet)"


@functools.cache
def tasks(data: Path, split: str) -> tuple[Task, ...]:
    """The tasks of a split, in the order of its file. Raises ConfigError for unknown splits and missing data."""
    if split not in SPLITS:
        raise ConfigError(f"appworld has no split {split!r}; its splits are {', '.join(SPLITS)}")
    listed = data / "datasets" / f"{split}.txt"
    if not listed.is_file():
        raise ConfigError(f"appworld's split {split!r}: {listed} is missing; {how_to_fetch(data.parent)}")
    names = listed.read_text().split()
    return tuple(_task(data, split, name) for name in names)


def _task(data: Path, split: str, name: str) -> Task:
    scenario, _, number = name.partition("_")
    if not number.isdecimal():
        raise ConfigError(f"appworld's split {split!r}: {name!r} is no task id; expected <scenario>_<number>")
    folder = data / "tasks" / name
    try:
        metadata = json.loads((folder / "ground_truth" / "metadata.json").read_text())
        difficulty = int(metadata["difficulty"])
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ConfigError(
            f"appworld's split {split!r}: task {name} has no readable metadata ({exc}); {how_to_fetch(data.parent)}"
        ) from exc
    return Task(task_id=name, env="appworld", split=split, scenario=scenario, difficulty=difficulty)


def solution(data: Path, task: Task) -> str:
    """The stored solution of a train or dev task as code to execute. Raises ConfigError where there is none."""
    path = data / "tasks" / task.task_id / "ground_truth" / "compiled_solution.py"
    if not path.is_file():
        raise ConfigError(
            f"appworld has no stored solution of task {task.task_id} ({task.split}): train and dev have them, the "
            "test splits do not; make demonstrations from train"
        )
    lines = [line for line in path.read_text().splitlines() if CANARY not in line]
    return "\n".join(lines).strip() + "\nsolution(apis, requester)"
