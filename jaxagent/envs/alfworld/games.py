"""The games of ALFWorld's download: which there are, and one read from its file. Needs neither of its packages.

    <root>/json_2.1.1/valid_seen/pick_and_place_simple-Mug-None-Desk-308/trial_T2019…/game.tw-pddl
                      split      scenario: kind of task, target, –, receptacle, floor plan    trial

Official counts: train 3,553, valid_seen 140, valid_unseen 134. As ALFWorld's own loader does, games about movable
receptacles or sliced things and those that are not marked solvable are left out; the order is that of the names.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from jaxagent.errors import ConfigError, DataError
from jaxagent.types import Task

SPLITS = ("train", "valid_seen", "valid_unseen")
Type = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]
TYPES: tuple[Type, ...] = get_args(Type)
FOLDER, FILE = "json_2.1.1", "game.tw-pddl"
TAIL = 8192  # bytes at the end of a game file that hold "solvable" and "walkthrough"
SOLVABLE = re.compile(rb'"solvable":\s*(true|false)')
GOAL_TEXT = re.compile(r"Your task is to: ([^\"]*)\"")
# Digests of the PDDL domain and of the grammar without its goal, the same in all 4,027 games of json_2.1.1.
RULES = ("574a98ddcfd0745755a35fbd9d73a583", "cb688445e0a361a4597e03db01f951ff")
CACHED = 16  # games kept as text, 90 kB each: the rollouts of one task follow each other


@dataclass(frozen=True)
class Game:
    """domain, grammar: source of the rules, empty where a game was generated. goal: in words. walkthrough: wins."""

    problem: str
    goal: str
    walkthrough: tuple[str, ...]
    domain: str = ""
    grammar: str = ""

    @property
    def known_rules(self) -> bool:
        """Whether house.py has these rules."""
        if not self.domain:
            return True
        bare = GOAL_TEXT.sub('Your task is to: X"', self.grammar)
        return (_digest(self.domain), _digest(bare)) == RULES


def _digest(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def data_folder(root: Path) -> Path:
    """The folder that holds the splits: `root` itself or the json_2.1.1 in it."""
    for folder in (root / FOLDER, root):
        if any((folder / split).is_dir() for split in SPLITS):
            return folder
    raise ConfigError(
        f"{root} holds no ALFWorld games: expected {FOLDER}/{{{','.join(SPLITS)}}}/<task>/<trial>/{FILE} in it; "
        "name the folder that `alfworld-download` filled"
    )


def official_tasks(folder: str, types: Sequence[str], split: str) -> list[Task]:
    """The games of a split that are of one of `types`, by name."""
    if split not in SPLITS:
        raise ConfigError(f"ALFWorld has no split {split!r}; its splits are {', '.join(SPLITS)}")
    if not (Path(folder) / split).is_dir():
        raise ConfigError(f"split {split!r} is not in {folder}; fetch it with `alfworld-download`")
    found = [task for task in _listed(folder, split) if task.type in types]
    if not found:
        raise ConfigError(f"{folder}/{split} holds no solvable game of the types {', '.join(types)}")
    return found


@lru_cache(maxsize=8)
def _listed(folder: str, split: str) -> tuple[Task, ...]:
    """Listing train reads the ends of 3,553 files; the games of a run do not change."""
    tasks = []
    for scenario in _folders(Path(folder) / split):
        kind = scenario.partition("-")[0]
        if kind not in TYPES or "movable" in scenario or "Sliced" in scenario:
            continue
        for trial in _folders(Path(folder) / split / scenario):
            name = f"{split}/{scenario}/{trial}"
            if "movable" not in trial and _solvable(Path(folder) / name / FILE):
                tasks.append(
                    Task(
                        f"alfworld/{name}",
                        "alfworld",
                        split,
                        scenario=scenario,
                        type=kind,
                        meta={"game": name},
                    )
                )
    return tuple(tasks)


def _folders(parent: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(parent) if entry.is_dir())


def _solvable(path: Path) -> bool:
    """Whether the file is there and says so; `"solvable"` stands unescaped in no other value."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        marks = SOLVABLE.findall(file.read())
    if marks:
        return marks[-1] == b"true"
    return bool(_fields(path).get("solvable"))  # the keys have another order in this file


def read_game(folder: str, task: Task) -> Game:
    """Raises DataError for a file that is no game."""
    return _read(Path(folder) / str(task.meta["game"]) / FILE)


@lru_cache(maxsize=CACHED)
def _read(path: Path) -> Game:
    fields = _fields(path)
    missing = [
        key for key in ("pddl_domain", "grammar", "pddl_problem") if not isinstance(fields.get(key), str)
    ]
    goal = GOAL_TEXT.search(str(fields.get("grammar", "")))
    if missing or goal is None:
        lacking = ", ".join(missing) or "a goal in its grammar"
        raise DataError(f"{path} is no ALFWorld game: it lacks {lacking}; fetch it again")
    return Game(
        problem=fields["pddl_problem"],
        goal=goal[1],
        walkthrough=tuple(fields.get("walkthrough") or ()),
        domain=fields["pddl_domain"],
        grammar=fields["grammar"],
    )


def _fields(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise DataError(f"{path} cannot be read as an ALFWorld game ({error}); fetch it again") from error
    if not isinstance(fields, dict):
        raise DataError(f"{path} holds {type(fields).__name__}, expected a JSON object")
    return fields
