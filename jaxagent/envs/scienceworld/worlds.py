"""How an episode reaches the simulator: straight, or through a record of what it answered before.

Rehearsals (prompt checks, demonstrations, a tokenizer's texts) play the same tasks hundreds of times in the trainer's
process. Worlds are deterministic, so each answer is asked for once, and Java starts only for what is not yet known.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from jaxagent.envs.scienceworld.java import Answer, Simulator, World, simulator


class Worlds(Protocol):
    """One world at a time: `step` and `description` are about the one that was loaded last."""

    def load(self, world: World) -> Answer: ...

    def step(self, command: str) -> Answer: ...

    def description(self) -> str: ...


class Recorded:
    """Answers from memory where it can. The simulator follows only when something new is asked: it then loads the
    world and replays the commands.
    """

    def __init__(self, start: Callable[[], Simulator]):
        self._start = start
        self._answers: dict[tuple[World, tuple[str, ...]], Answer] = {}
        self._descriptions: dict[World, str] = {}
        self._gold: dict[World, tuple[str, ...]] = {}
        self._at: tuple[World, tuple[str, ...]] | None = None  # where the simulator is

    def load(self, world: World) -> Answer:
        self._world, self._path = world, ()
        return self._answer()

    def step(self, command: str) -> Answer:
        self._path = (*self._path, command)
        return self._answer()

    def description(self) -> str:
        return self._descriptions[self._world]

    def gold(self, world: World) -> tuple[str, ...]:
        if world not in self._gold:
            self._at = None
            self._gold[world] = self._start().gold(world)
        return self._gold[world]

    def _answer(self) -> Answer:
        here = (self._world, self._path)
        if here not in self._answers:
            self._answers[here] = self._ask()
            self._at = here
        return self._answers[here]

    def _ask(self) -> Answer:
        """The simulator's answer to the last command of the path (to loading, when it is empty)."""
        live, path = self._start(), self._path
        if path and self._at == (self._world, path[:-1]):
            return live.step(path[-1])
        answer = live.load(self._world)
        self._descriptions[self._world] = live.description()
        for command in path:
            answer = live.step(command)
        return answer


@lru_cache(maxsize=1)
def recorded() -> Recorded:
    """This process's record."""
    return Recorded(simulator)
