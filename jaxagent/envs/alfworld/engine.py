"""ALFWorld's own engine behind the same four members as `House`: textworld, its planning library, the demangler.

Slow (seconds a reset, tens of milliseconds a step: the planner grounds the problem four times and lists the applicable
operators after each command), and the reference that house.py is checked against. Imported in workers only.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from jaxagent.envs.alfworld.games import Game
from jaxagent.envs.alfworld.house import House
from jaxagent.envs.alfworld.problem import read_problem
from jaxagent.envs.alfworld.state import MARKS, PLACES, Facts
from jaxagent.envs.entry import need
from jaxagent.errors import DataError

INSTALL = "pip install 'jaxagent[alfworld]' (compiles a planner: some minutes, gcc, g++, make and cmake)"


@runtime_checkable
class Engine(Protocol):
    """A game in play."""

    def start(self) -> str: ...

    def step(self, command: str) -> str: ...

    def admissible(self) -> list[str]: ...

    @property
    def won(self) -> bool: ...

    def facts(self) -> Facts: ...

    def close(self) -> None: ...


def open_engine(name: str, game: Game) -> Engine:
    """ "python" is House, "textworld" the package's. Raises DataError where House does not have a game's rules."""
    if name == "textworld":
        return Planned(game)
    if not game.known_rules:
        raise DataError("this game's rules differ from those of json_2.1.1; use env.options.engine=textworld")
    return House(read_problem(game.problem), game.goal)


# Engines of closed games. Each holds its own copy of the planner's library, which cannot be unloaded: after
# fast_downward.close_lib the process crashes when it ends. So there are as many as games were ever open at once.
IDLE: list[Any] = []


class Planned:
    """The package's engine. `close` gives it back: this process's next game is loaded into it."""

    def __init__(self, game: Game):
        textworld = need("textworld", install=INSTALL)
        environment = need("alfworld.agents.environment.alfred_tw_env", install=INSTALL)
        infos = textworld.EnvInfos(won=True, admissible_commands=True, facts=True)
        self._engine: Any = IDLE.pop() if IDLE else importlib.import_module("textworld.envs").PddlEnv(infos)
        self._env: Any = environment.AlfredDemangler(self._engine, shuffle=False)
        self._env.load(_source(game))
        self._now: Any = None

    def start(self) -> str:
        self._now = self._env.reset()
        return self._now.feedback

    def step(self, command: str) -> str:
        self._now, _, _ = self._env.step(command)
        return self._now.feedback

    def admissible(self) -> list[str]:
        return list(self._now.admissible_commands)

    @property
    def won(self) -> bool:
        return bool(self._now.won)

    def facts(self) -> Facts:
        """As `House.facts`: the agent is the first argument of `holds` and `atlocation`, and left out."""
        facts = [(fact.name, *(argument.name for argument in fact.arguments)) for fact in self._now["_facts"]]
        changing = [fact for fact in facts if fact[0] in MARKS + PLACES]
        return tuple(
            sorted([*changing, *((fact[0], fact[2]) for fact in facts if fact[0] in ("atlocation", "holds"))])
        )

    def close(self) -> None:
        if self._engine is not None:
            self._engine.downward_lib.cleanup()
            IDLE.append(self._engine)
            self._engine = None


def _source(game: Game) -> dict[str, Any]:
    """What the engine loads; the rules of generated games are those that the package ships."""
    if game.domain:
        domain, grammar = game.domain, game.grammar
    else:
        package = need("alfworld", install=INSTALL)
        data = Path(str(package.__file__)).parent / "data"
        domain = (data / "alfred.pddl").read_text()
        grammar = (data / "alfred.twl2").read_text().replace("UNKNOWN GOAL", game.goal.removesuffix("."))
    return {
        "pddl_domain": domain,
        "grammar": grammar,
        "pddl_problem": game.problem,
        "walkthrough": list(game.walkthrough),
    }
