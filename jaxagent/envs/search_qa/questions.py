"""Questions and their splits. In: a file. Out: `Task`s whose meta holds question, answers and supporting titles.

A question keeps the split that its line names. Without one it falls by the hash of its id: a tenth test, a tenth dev,
the rest train; so it stays in its split when the file grows or is sorted anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from jaxagent.envs.json_lines import read_objects
from jaxagent.envs.search_qa.made_up import made_up_questions
from jaxagent.errors import ConfigError, DataError
from jaxagent.types import Task

SPLITS = ("train", "dev", "test")
LEVELS = {"easy": 1, "medium": 2, "hard": 3}  # HotpotQA's


@lru_cache(maxsize=4)
def read_questions(source: str, path: str) -> tuple[Task, ...]:
    """All questions of a source, in the file's order. Raises DataError for lines of another format."""
    if source == "generated":
        rows: Iterable[Mapping[str, Any]] = made_up_questions()
    else:
        rows = _hotpotqa(Path(path)) if source == "hotpotqa" else read_lines(Path(path))
    tasks: dict[str, Task] = {}
    for number, row in enumerate(rows):
        try:
            task = _task(row)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DataError(
                f"{path}: question {number} ({type(error).__name__}: {error}); expected id, question and answers"
            ) from None
        if task.task_id in tasks:
            raise DataError(f"{path}: question id {row['id']!r} occurs twice; ids must be unique")
        tasks[task.task_id] = task
    return tuple(tasks.values())


def questions_of(split: str, tasks: Iterable[Task]) -> list[Task]:
    found = [task for task in tasks if task.split == split]
    known = sorted({task.split for task in tasks})
    if not found:
        raise ConfigError(
            f"search_qa has no split {split!r} in these questions; they hold {', '.join(known)}"
        )
    return found


def _task(row: Mapping[str, Any]) -> Task:
    answers = row["answers"]
    if isinstance(answers, str) or not answers or not all(isinstance(answer, str) for answer in answers):
        raise ValueError(f"answers={answers!r} is no list of strings")
    identity = str(row["id"])
    return Task(
        task_id=f"search_qa/{identity}",
        env="search_qa",
        split=str(row.get("split") or split_by_hash(identity)),
        scenario=identity,
        difficulty=LEVELS.get(str(row.get("level", "")), 1),
        type=str(row.get("type", "")),
        meta={
            "question": str(row["question"]),
            "answers": tuple(answers),
            "titles": tuple(row.get("titles", ())),
        },
    )


def split_by_hash(identity: str) -> str:
    bucket = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:4], "big") % 10
    return {0: "test", 1: "dev"}.get(bucket, "train")


def _hotpotqa(path: Path) -> Iterator[dict[str, Any]]:
    for row in read_hotpotqa(path):
        facts = row["supporting_facts"]
        titles = facts["title"] if isinstance(facts, Mapping) else [title for title, _ in facts]
        yield {
            "id": row.get("id") or row["_id"],
            "question": row["question"],
            "answers": [row["answer"]],
            "titles": list(dict.fromkeys(titles)),
            "type": row.get("type", ""),
            "level": row.get("level", ""),
        }


def read_hotpotqa(path: Path) -> list[dict[str, Any]]:
    """The file's questions, each with the paragraphs that it came with."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); expected a HotpotQA distractor file") from None
    if not isinstance(rows, list) or not rows or "context" not in rows[0]:
        raise DataError(
            f"{path}: expected a HotpotQA distractor file: a list of questions, each with a context"
        )
    return rows


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON Lines file."""
    return (row for _, row in read_objects(path))
