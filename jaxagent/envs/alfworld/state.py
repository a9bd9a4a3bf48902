"""The state of a game: the facts that commands change, over those of its problem that never do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from jaxagent.envs.alfworld.problem import ABLE, Problem

MARKS = ("opened", "isclean", "ishot", "iscool", "istoggled", "issliced")
PLACES = ("inreceptacle", "objectatlocation")
Facts = tuple[tuple[str, ...], ...]


@dataclass
class State:
    """at: the agent's location. held: what it carries, or "". inside: (thing, receptacle). lying: (thing, location).

    marked: predicate -> what it holds of. parted: (thing, receptacle) that a `take` parted and no `move` joined since.
    """

    problem: Problem
    at: str
    inside: set[tuple[str, str]]
    lying: set[tuple[str, str]]
    marked: dict[str, set[str]]
    held: str = ""
    parted: set[tuple[str, str]] = field(default_factory=set)

    @classmethod
    def first(cls, problem: Problem) -> State:
        return cls(
            problem,
            at=next(location for _, location in problem.pairs("atlocation")),
            inside=set(problem.pairs("inreceptacle")),
            lying=set(problem.pairs("objectatlocation")),
            marked={name: set(problem.those(name)) for name in MARKS},
        )

    def is_(self, mark: str, thing: str) -> bool:
        return thing in self.marked[mark]

    @property
    def here(self) -> list[str]:
        """The receptacles where the agent stands."""
        return [name for name, location in self.problem.location.items() if location == self.at]

    def contents(self, receptacle: str) -> list[str]:
        return sorted(thing for thing, where in self.inside if where == receptacle)

    def closed(self, receptacle: str) -> bool:
        return receptacle in self.problem.those("openable") and not self.is_("opened", receptacle)

    @property
    def won(self) -> bool:
        goal, kind, problem = self.problem.goal, self.problem.kind, self.problem
        if goal.lamp:
            lamps = self.marked["istoggled"] & problem.those("toggleable")
            lit = any(
                thing in lamps
                and kind.get(thing) == goal.lamp
                and problem.location.get(receptacle) == self.at
                for thing, receptacle in self.inside
            )
            return lit and kind.get(self.held) == goal.target
        able = problem.those(ABLE[goal.quality]) & self.marked[goal.quality] if goal.quality else None
        placed = Counter(
            receptacle
            for thing, receptacle in self.inside
            if kind.get(thing) == goal.target
            and kind.get(receptacle) == goal.receptacle
            and (able is None or thing in able)
        )
        return max(placed.values(), default=0) >= goal.count

    def facts(self) -> Facts:
        """Every fact that commands change, sorted: equal exactly for equal states of one game."""
        facts: list[tuple[str, ...]] = [("atlocation", self.at)]
        facts += [("holds", self.held)] if self.held else []
        facts += [("inreceptacle", *pair) for pair in self.inside]
        facts += [("objectatlocation", *pair) for pair in self.lying]
        facts += [(mark, thing) for mark, things in self.marked.items() for thing in things]
        return tuple(sorted(facts))
