"""The benchmark's files as the package `bfcl_eval` ships them: entries, ground truth, function docs; and the splits.

Nothing of the package is imported here but its location, so tasks and prompts cost the trainer no tool classes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from jaxagent.envs.bfcl.calls import read_python_call
from jaxagent.envs.entry import need
from jaxagent.errors import ConfigError
from jaxagent.types import Task, ToolCall

INSTALL = "pip install --no-deps bfcl-eval && pip install mpmath"
CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
HALVES = ("train", "test")  # of the category base
VERSION = "BFCL_v4_multi_turn"
DOCS: Mapping[str, str] = {  # class -> file of its function docs
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}


@dataclass(frozen=True)
class Entry:
    """One conversation of the benchmark.

    turns:    the user's messages; "" where only withheld functions are handed out.
    expected: per turn the ground truth's calls; an empty turn is one in which nothing can be done (yet).
    withheld: turn -> names of the functions that are documented from that turn on.
    """

    task_id: str
    category: str
    turns: tuple[str, ...]
    expected: tuple[tuple[ToolCall, ...], ...]
    classes: tuple[str, ...]
    config: Mapping[str, Any]
    withheld: Mapping[int, tuple[str, ...]]
    excluded: tuple[str, ...]


def check_installed() -> None:
    """Raises ConfigError where the package or mpmath (which one of its tools imports) is missing."""
    need("bfcl_eval", install=INSTALL)
    need("mpmath", install=INSTALL)


def _root() -> Path:
    return Path(str(need("bfcl_eval", install=INSTALL).__file__)).parent / "data"


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


@lru_cache
def functions(class_name: str) -> Mapping[str, Mapping[str, Any]]:
    """The function docs of a class, by name, in the benchmark's own format."""
    return {doc["name"]: doc for doc in _lines(_root() / "multi_turn_func_doc" / f"{DOCS[class_name]}.json")}


def documented(entry: Entry) -> Mapping[str, Mapping[str, Any]]:
    """Function docs of the entry's classes. Where two classes share a name the later one counts, as in the package."""
    return {name: doc for class_name in entry.classes for name, doc in functions(class_name).items()}


@lru_cache
def entries(category: str) -> Mapping[str, Entry]:
    """The 200 entries of a category, by id, in the file's order."""
    name = f"{VERSION}_{category}.json"
    answers = {line["id"]: line["ground_truth"] for line in _lines(_root() / "possible_answer" / name)}
    read = [_entry(line, category, answers[line["id"]]) for line in _lines(_root() / name)]
    return {entry.task_id: entry for entry in read}


def _entry(line: Mapping[str, Any], category: str, answer: Sequence[Sequence[str]]) -> Entry:
    parameters = {
        name: list(doc["parameters"]["properties"])
        for class_name in line["involved_classes"]
        for name, doc in functions(class_name).items()
    }
    return Entry(
        task_id=line["id"],
        category=category,
        turns=tuple(messages[0]["content"] if messages else "" for messages in line["question"]),
        expected=tuple(tuple(read_python_call(text, parameters) for text in calls) for calls in answer),
        classes=tuple(line["involved_classes"]),
        config=line["initial_config"],
        withheld={int(turn): tuple(names) for turn, names in line.get("missed_function", {}).items()},
        excluded=tuple(line.get("excluded_function", ())),
    )


def find(task: Task) -> Entry:
    """The entry of a task."""
    return entries(task.type)[task.task_id]


def tasks(split: str, *, seed: int) -> list[Task]:
    """A category, all of them, or a half of base: ids in the file's order, shuffled by `seed`, cut in the middle."""
    known = (*HALVES, *CATEGORIES, "all")
    if split not in known:
        raise ConfigError(f"bfcl has no split {split!r}; its splits are {', '.join(known)}")
    if split == "all":
        return [task for category in CATEGORIES for task in tasks(category, seed=seed)]
    if split in CATEGORIES:
        return [_task(task_id, split, split) for task_id in entries(split)]
    ids = list(entries("base"))
    random.Random(seed).shuffle(ids)
    middle = len(ids) // 2
    return [_task(task_id, "base", split) for task_id in (ids[:middle] if split == "train" else ids[middle:])]


def _task(task_id: str, category: str, split: str) -> Task:
    """Number n of every category is a variation of one conversation: they are a scenario."""
    return Task(task_id, "bfcl", split, scenario=f"conversation_{task_id.rpartition('_')[2]}", type=category)
