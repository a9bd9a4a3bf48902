"""What a task wants, and the unit tests that decide whether a final state gives it.

Tests of a task: it was completed; the answer is right (or none was given where none is asked for); every
intended change is there; nothing else changed. An evaluation never raises because of what an agent did.

    wanted   updated("todo.items", 7, is_completed=True)
    agent    completes items 7 and 8
    tests    completed ok, answer ok, item 7 ok, nothing else changed FAILS (todo.items 8)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxagent.envs.world.engine import Tables, World
from jaxagent.types import Evaluation


@dataclass(frozen=True)
class Change:
    """One intended change of a table. `kind` is "added", "updated" or "removed".

    fields: for "added" the fields that must match (others are free); for "updated" exactly the fields that
            change.
    """

    kind: str
    table: str
    key: int = 0
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        which = "" if self.kind == "added" else f" {self.key}"
        return f"{self.kind} {self.table}{which} {dict(self.fields) or ''}".strip()


def added(table: str, **fields: Any) -> Change:
    return Change("added", table, fields=fields)


def updated(table: str, key: int, **fields: Any) -> Change:
    return Change("updated", table, key, fields)


def removed(table: str, key: int) -> Change:
    return Change("removed", table, key)


CodeStep = str | Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class Goal:
    """A task's instruction, its intended changes and answer, and the code that reaches them.

    steps:   the reference solution, one item a turn: agent code, or a function that writes it from the
             observations seen so far. It knows the instruction and the public interface only. At the full
             level logins come before it (expert.py) and leave `<app>_token`.
    lookups: the APIs ("app.api") whose documentation the expert reads first.
    """

    instruction: str
    steps: tuple[CodeStep, ...]
    changes: tuple[Change, ...] = ()
    answer: Any = None
    lookups: tuple[str, ...] = ()


def normal(value: Any) -> Any:
    """Texts are compared without case, outer spaces and a final full stop; numbers by value, to the cent."""
    if isinstance(value, bool) or value is None:
        return str(value).casefold()  # True is not 1
    if isinstance(value, (int, float)):
        small = abs(value) < 1e15  # false for inf, nan and integers that no float can hold
        return round(float(value), 2) if small else "not a number"
    if isinstance(value, (list, tuple)):
        return tuple(normal(item) for item in value)
    text = " ".join(str(value).split()).casefold().removesuffix(".")
    try:
        number = float(text.removeprefix("$").replace(",", ""))
    except ValueError:
        return text
    return round(number, 2) if math.isfinite(number) else text


def same_answer(got: Any, wanted: Any) -> bool:
    if wanted is None or got is None:
        return got is None and wanted is None
    if isinstance(wanted, (list, tuple)):
        items = got if isinstance(got, (list, tuple)) else str(got).split(",")
        return sorted(map(str, map(normal, items))) == sorted(map(str, map(normal, wanted)))
    return normal(got) == normal(wanted)


def differences(before: Tables, after: Tables) -> list[Change]:
    """Every row that was added, removed or changed."""
    found = []
    for table, old in before.items():
        new = after.get(table, {})
        found += [Change("removed", table, key) for key in old if key not in new]
        for key, row in new.items():
            if key not in old:
                found.append(Change("added", table, key, row))
            elif row != old[key]:
                fields = {name: value for name, value in row.items() if old[key].get(name) != value}
                found.append(Change("updated", table, key, fields))
    return found


def _fits(wanted: Change, got: Change) -> bool:
    if (wanted.kind, wanted.table) != (got.kind, got.table):
        return False
    if wanted.kind == "added":
        return all(normal(got.fields.get(name)) == normal(value) for name, value in wanted.fields.items())
    same = {name: normal(value) for name, value in wanted.fields.items()}
    return wanted.key == got.key and same == {name: normal(value) for name, value in got.fields.items()}


def evaluate(goal: Goal, before: Tables, world: World) -> Evaluation:
    """Run the task's tests on the final state of `world`."""
    rest = differences(before, world.tables)
    failures: list[str] = []
    if not (world.completed and world.status == "success"):
        failures.append("the task was not completed with status success")
    if not (world.completed and same_answer(world.answer, goal.answer)):
        failures.append(f"the answer is {str(world.answer)[:200]!r}, expected {goal.answer!r}")
    for wanted in goal.changes:
        match = next((got for got in rest if _fits(wanted, got)), None)
        if match is None:
            failures.append(f"missing: {wanted}")
        else:
            rest.remove(match)
    if rest:
        failures.append("other records changed: " + "; ".join(str(change)[:200] for change in rest[:5]))
    total = 3 + len(goal.changes)
    return Evaluation(
        success=not failures, passed=total - len(failures), total=total, failures=tuple(failures)
    )
