"""A game's PDDL problem: its initial facts, its goal, and the names that the player sees.

In: the text of `pddl_problem` of a game.tw-pddl. Out: a `Problem`, everything in lower case as the planner has it.
Not its job: what commands do (house.py).

    (inReceptacle Mug_bar__minus_01_dot_43_bar_… Desk_bar_…)    ("mug_bar__minus_01_dot_43_bar_…", "desk_bar_…"); the
                                                                player sees "mug 1" and "desk 2"
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from jaxagent.errors import DataError

ABLE: Mapping[str, str] = {"isclean": "cleanable", "ishot": "heatable", "iscool": "coolable"}
ATOM = re.compile(r"\(\s*([\w-]+|=)((?:\s+[?\w.+-]+)*)\s*\)")
Facts = Mapping[str, frozenset[tuple[str, ...]]]


@dataclass(frozen=True)
class Goal:
    """What wins: `count` things of type `target`, all with `quality`, in one receptacle of type `receptacle`.

    With a `lamp` there is no receptacle: hold the target where a lamp of that type stands that has been switched.
    """

    target: str
    receptacle: str = ""
    count: int = 1
    quality: str = ""
    lamp: str = ""


@dataclass(frozen=True)
class Problem:
    """facts: predicate -> argument tuples that hold at the start. names: planner's id -> what the player sees.

    location: receptacle -> where it stands, in the order of the ids. kind: thing or receptacle -> its type.
    """

    facts: Facts
    goal: Goal
    names: Mapping[str, str]

    def those(self, predicate: str) -> frozenset[str]:
        """What a predicate of one argument holds of."""
        return self._those.get(predicate, frozenset())

    def pairs(self, predicate: str) -> frozenset[tuple[str, str]]:
        """What a predicate of two arguments holds of."""
        return self._pairs.get(predicate, frozenset())

    @cached_property
    def location(self) -> Mapping[str, str]:
        return dict(sorted(self.pairs("receptacleatlocation")))

    @cached_property
    def kind(self) -> Mapping[str, str]:
        return dict(self.pairs("receptacletype")) | dict(self.pairs("objecttype"))

    @cached_property
    def _those(self) -> Mapping[str, frozenset[str]]:
        return {name: frozenset(a[0] for a in found if len(a) == 1) for name, found in self.facts.items()}

    @cached_property
    def _pairs(self) -> Mapping[str, frozenset[tuple[str, str]]]:
        return {
            name: frozenset((a[0], a[1]) for a in found if len(a) == 2) for name, found in self.facts.items()
        }


def read_problem(text: str) -> Problem:
    """Raises DataError for a problem of another form than ALFWorld's."""
    lowered = text.lower()
    head, mark, rest = lowered.partition("(:init")
    init, goal_mark, goal = rest.partition("(:goal")
    if not (mark and goal_mark):
        raise DataError(
            f"a PDDL problem without (:init or (:goal: {head.strip()[:80]!r}; expected ALFWorld's"
        )
    facts: dict[str, set[tuple[str, ...]]] = {}
    for predicate, arguments in _atoms(init):
        if predicate != "=":  # distances, which no rule reads
            facts.setdefault(predicate, set()).add(arguments)
    frozen = {predicate: frozenset(found) for predicate, found in facts.items()}
    return Problem(frozen, read_goal(goal), display_names(frozen))


def _atoms(text: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(match[1], tuple(match[2].split())) for match in ATOM.finditer(text)]


def read_goal(text: str) -> Goal:
    """The goal of one of the six kinds of task, from its formula in lower case."""
    atoms = _atoms(text)
    of_variable = {arguments[0]: arguments[1] for name, arguments in atoms if name == "objecttype"}
    receptacles = {arguments[1] for name, arguments in atoms if name == "receptacletype"}
    switched = {arguments[0] for name, arguments in atoms if name == "istoggled"}
    qualities = {name for name, _ in atoms if name in ABLE}
    targets = {kind for variable, kind in of_variable.items() if variable not in switched}
    lamps = {kind for variable, kind in of_variable.items() if variable in switched}
    count = sum(variable not in switched for variable in of_variable)
    if len(targets) != 1 or len(lamps) + len(receptacles) != 1 or len(qualities) > 1 or "forall" in text:
        raise DataError(f"a goal of another form than ALFWorld's six: {' '.join(text.split())[:200]}")
    quality = next(iter(qualities), "")
    return Goal(targets.pop(), next(iter(receptacles), ""), count, quality, next(iter(lamps), ""))


def display_names(facts: Facts) -> dict[str, str]:
    """Each kind of thing is numbered downwards along its sorted ids, as ALFWorld's demangler does; types have no name.

    {"desk_bar_1", "desk_bar_2", "lamptype"}  ->  {"desk_bar_1": "desk 2", "desk_bar_2": "desk 1"}
    """
    ids = sorted({argument for found in facts.values() for arguments in found for argument in arguments})
    kinds = [_kind(name) for name in ids]
    left = Counter(kinds)
    names: dict[str, str] = {}
    for name, kind in zip(ids, kinds, strict=True):
        if "_bar_" in name:
            names[name] = f"{kind} {left[kind]}"
            left[kind] -= 1
    return names


def _kind(name: str) -> str:
    return name.partition("_bar_")[0] + ("basin" if "basin" in name and "_bar_" in name else "")
