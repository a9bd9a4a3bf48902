"""How an episode reaches the simulator: straight, or through a record of what it answered before.

Rehearsals (prompt checks, demonstrations, a tokenizer's texts) play the same tasks hundreds of times in the trainer's
process. Worlds are deterministic, so each answer is asked for once, and Java starts only for what is not yet known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from jaxagent.envs.scienceworld.java import Answer, Place, Simulator, World, simulator


class Worlds(Protocol):
    """One world at a time: `step` and `description` are about the one that was loaded last."""

    at: Place | None

    def load(self, world: World) -> Answer: ...

    def step(self, command: str) -> Answer: ...

    def description(self) -> str: ...


@dataclass
class Known:
    """What the simulator has said about one world: its answer to each path of commands; () is loading."""

    description: str = ""
    gold: tuple[str, ...] | None = None
    answers: dict[tuple[str, ...], Answer] = field(default_factory=dict)


class Recorded:
    """Answers from memory where it can. The simulator follows only when something new is asked: it then loads the
    world and replays the commands. The worlds asked for last are kept.
    """

    def __init__(self, start: Callable[[], Simulator], *, worlds: int = 256):
        self._start, self._worlds = start, worlds
        self._known: dict[World, Known] = {}
        self.at: Place | None = None

    def load(self, world: World) -> Answer:
        return self._answer(world, ())

    def step(self, command: str) -> Answer:
        assert self.at is not None, "no world is loaded"
        world, before = self.at
        return self._answer(world, (*before, command))

    def description(self) -> str:
        assert self.at is not None, "no world is loaded"
        return self._of(self.at[0]).description

    def gold(self, world: World) -> tuple[str, ...]:
        """The simulator's own solution."""
        known = self._of(world)
        if known.gold is None:
            known.gold = self._start().gold(world)
        return known.gold

    def _of(self, world: World) -> Known:
        known = self._known[world] = self._known.pop(world, None) or Known()
        while len(self._known) > self._worlds:
            self._known.pop(next(iter(self._known)))
        return known

    def _answer(self, world: World, path: tuple[str, ...]) -> Answer:
        known = self._of(world)
        if path not in known.answers:
            known.answers[path] = self._ask(world, path)
        self.at = (world, path)
        return known.answers[path]

    def _ask(self, world: World, path: tuple[str, ...]) -> Answer:
        """The simulator's answer to the last command of the path (to loading, when it is empty)."""
        live = self._start()
        if path and live.at == (world, path[:-1]):
            return live.step(path[-1])
        answer = live.load(world)
        self._of(world).description = live.description()
        for command in path:
            answer = live.step(command)
        return answer


@lru_cache(maxsize=1)
def recorded() -> Recorded:
    """This process's record."""
    return Recorded(simulator)
