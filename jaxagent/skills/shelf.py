"""SAGE at test time: libraries that grow while a split is played, and which of their functions a task gets.

The tasks of a scenario are played one after another in a seeded order, the scenarios side by side: in round r every
scenario's r-th task sees what the rounds before it left. Nobody knows the verdicts: functions of failed tasks stay.

    same_scenario    all functions of the scenario's earlier tasks (an oracle: real requests name no scenario)
    by_request       those of the k earlier tasks whose requests are most alike: n-gram Jaccard, or embeddings
    by_function      the k functions whose signature and docstring are most like the request

Each rollout number has a library of its own, as in training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from jaxagent.data.chains import Handed
from jaxagent.plan import Plan
from jaxagent.rollout.review import plain_prompt
from jaxagent.skills.functions import Library, defined, library_state, merged, used
from jaxagent.skills.hand_on import function_text
from jaxagent.skills.request import Asked, request_of
from jaxagent.skills.retrieve import Likeness, top_k
from jaxagent.stage import Rollout
from jaxagent.types import Action, Group, Prompt, Sampling, Task, Trajectory

NAME = "library"  # group name of the plans of one task


@dataclass(frozen=True)
class Shelved:
    """What one finished task left."""

    task: Task
    request: str
    functions: Library


Shelf = list[Shelved]
Pick = Callable[[Task, str, Sequence[Shelved]], Library]
"""(task, its request, what earlier tasks left, oldest first) -> the functions that it gets."""


def same_scenario(task: Task, request: str, shelf: Sequence[Shelved]) -> Library:
    return _together([left for left in shelf if left.task.scenario == task.scenario])


def by_request(likeness: Likeness, k: int, floor: float) -> Pick:
    """Tasks without functions have nothing to give and take no place among the k."""

    def pick(task: Task, request: str, shelf: Sequence[Shelved]) -> Library:
        full = [left for left in shelf if left.functions]
        if not full or not request.strip():
            return ()
        best = top_k(likeness(request, [left.request for left in full]), k, floor=floor)
        return _together([full[i] for i in sorted(best)])

    return pick


def by_function(likeness: Likeness, k: int, floor: float) -> Pick:
    def pick(task: Task, request: str, shelf: Sequence[Shelved]) -> Library:
        functions = _together(shelf)
        if not functions or not request.strip():
            return ()
        best = top_k(likeness(request, [function_text(function) for function in functions]), k, floor=floor)
        return tuple(functions[i] for i in sorted(best))

    return pick


def _together(shelf: Sequence[Shelved]) -> Library:
    library: Library = ()
    for left in shelf:
        library = merged(library, left.functions)
    return library


@dataclass
class GrowingLibraries:
    """Remembers the last evaluation: `state` says in which order it was played, and what the libraries became."""

    pick: Pick
    hand: Callable[[Library], Handed]
    seed: int = 0
    asked: Asked = request_of
    _rounds: list[list[str]] = field(default_factory=list)
    _shelves: dict[int, Shelf] = field(default_factory=dict)
    _uses: list[bool] = field(default_factory=list)

    def way(self, rollout: Rollout) -> Rollout:
        async def played(plans: Sequence[Plan], sampling: Sampling) -> Sequence[Group]:
            self._rounds, self._shelves, self._uses = [], {}, []
            groups: dict[str, Group] = {}
            for part in in_rounds(plans, self.seed):
                self._rounds.append([plan.task.task_id for plan in part])
                stood = {number: tuple(shelf) for number, shelf in self._shelves.items()}
                asked = [
                    self._asked(plan, number, stood.get(number, ()))
                    for plan in part
                    for number in range(plan.n)
                ]
                for group in await rollout(asked, sampling):
                    groups[group.task.task_id] = group
                    for trajectory in group.trajectories:
                        self._shelve(trajectory, stood.get(trajectory.rollout, ()))
            return [groups[plan.task.task_id] for plan in plans]

        return played

    def _asked(self, plan: Plan, number: int, shelf: Sequence[Shelved]) -> Plan:
        """One rollout of a plan, with what is on its shelf."""

        def start(opening: Prompt) -> Handed:
            return self.hand(self.pick(plan.task, self.asked(opening), shelf))

        def prompt(opening: Prompt) -> Prompt:
            return start(opening).prompt(opening)

        def before(opening: Prompt) -> Sequence[Action]:
            return start(opening).before(opening)

        return replace(plan, n=1, first=number, group=NAME, prompt=prompt, before=before)

    def _shelve(self, trajectory: Trajectory, shelf: Sequence[Shelved]) -> None:
        """shelf: as it stood when the episode began."""
        request = self.asked(plain_prompt(trajectory))
        had = self.pick(trajectory.task, request, shelf)
        if had:
            self._uses.append(bool(used(trajectory, had)))
        left = Shelved(trajectory.task, request, defined(trajectory, had))
        self._shelves.setdefault(trajectory.rollout, []).append(left)

    def state(self) -> dict[str, Any]:
        """JSON-serialisable, for people."""
        return {
            "seed": self.seed,
            "order": self._rounds,
            "used_frac": sum(self._uses) / len(self._uses) if self._uses else None,
            "functions": {
                str(number): [
                    {"request": left.request, "functions": library_state(left.functions)} for left in shelf
                ]
                for number, shelf in sorted(self._shelves.items())
            },
        }


def in_rounds(plans: Sequence[Plan], seed: int) -> list[list[Plan]]:
    """The r-th task of every scenario, for r = 0, 1, …; a task without a scenario is one of its own."""
    by_scenario: dict[str, list[Plan]] = {}
    for plan in plans:
        by_scenario.setdefault(plan.task.scenario or plan.task.task_id, []).append(plan)
    for scenario, members in by_scenario.items():
        Random(f"{seed}/{scenario}").shuffle(members)
    longest = max(map(len, by_scenario.values()), default=0)
    return [[members[r] for members in by_scenario.values() if r < len(members)] for r in range(longest)]
