"""The rules of ALFWorld's games: which commands there are in a state, and what each of them does.

In: a `Problem` and commands. Out: the texts that the package's own engine prints, word for word (`textworld` with a
planning library, engine.py), a thousand times faster: that engine grounds the whole problem at each reset and asks the
planner for all applicable operators after each command. All games of ALFWorld share one set of rules, a PDDL domain
and a grammar (games.RULES); a game with others is refused. tests/envs/test_alfworld.py compares the two engines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from jaxagent.envs.alfworld import seen
from jaxagent.envs.alfworld.problem import ABLE, Problem
from jaxagent.envs.alfworld.state import Facts, State

KNIVES = ("knifetype", "butterknifetype")
TREATMENTS = (  # verb, kinds of receptacle where it works, mark it gives, mark it takes
    ("heat", ("microwavetype",), "ishot", "iscool"),
    ("clean", ("sinktype", "sinkbasintype"), "isclean", ""),
    ("cool", ("fridgetype",), "iscool", "ishot"),
)
Effect = Callable[[], str]


class House:
    """One game. `step` answers a command; `admissible` lists those that would do something."""

    def __init__(self, problem: Problem, task: str):
        """task: the goal in words, e.g. "put a mug in desk."."""
        self._problem, self._task, self._names = problem, task, problem.names
        self._state = State.first(problem)

    def start(self) -> str:
        return seen.introduction(self._state, self._task)

    def step(self, command: str) -> str:
        effect = self._commands().get(command)
        return seen.NOTHING if effect is None else effect()

    def admissible(self) -> list[str]:
        return sorted(self._commands())

    @property
    def won(self) -> bool:
        return self._state.won

    def facts(self) -> Facts:
        return self._state.facts()

    def close(self) -> None:
        """Nothing is held."""

    # --- which commands there are --------------------------------------------------------------------------

    def _commands(self) -> Mapping[str, Effect]:
        """Command -> what it does, of every command whose preconditions hold."""
        state = self._state
        commands: dict[str, Effect] = {
            "help": lambda: seen.HELP,
            "inventory": partial(seen.inventory, state),
            "look": partial(seen.look, state),
        }
        for receptacle, location in self._problem.location.items():
            if location != state.at:
                commands[f"go to {self._names[receptacle]}"] = partial(self._go, receptacle)
        for receptacle in state.here:
            commands |= self._at(receptacle)
            if state.held:
                commands |= self._with_held(receptacle)
        if state.held:
            held = f"examine {self._names[state.held]}"
            commands |= {held: partial(seen.description, state, state.held), **self._with_knife()}
        return commands

    def _at(self, receptacle: str) -> dict[str, Effect]:
        """What can be done with a receptacle and with the things in it."""
        state, problem, name = self._state, self._problem, self._names[receptacle]
        commands: dict[str, Effect] = {f"examine {name}": partial(seen.contents, state, receptacle)}
        if state.closed(receptacle):
            commands[f"open {name}"] = partial(self._open, receptacle)
        elif receptacle in problem.those("openable"):
            commands[f"close {name}"] = partial(self._close, receptacle)
        for thing in state.contents(receptacle):
            label = self._names[thing]
            if thing in problem.those("toggleable"):  # a switch can be reached in a closed receptacle too
                commands[f"use {label}"] = partial(self._use, thing)
            # The domain means things in reach to be examined too; a comma after a type there leaves those in hand.
            if not (state.held or state.closed(receptacle)) and thing in problem.those("pickupable"):
                commands[f"take {label} from {name}"] = partial(self._take, thing, receptacle)
        return commands

    def _with_held(self, receptacle: str) -> dict[str, Effect]:
        """What can be done with the thing in hand at a receptacle; heating and cooling need no open door."""
        state, problem, held = self._state, self._problem, self._state.held
        name, label, kind = self._names[receptacle], self._names[held], problem.kind.get(receptacle, "")
        commands: dict[str, Effect] = {}
        if not state.closed(receptacle) and (kind, problem.kind.get(held, "")) in problem.pairs("cancontain"):
            commands[f"move {label} to {name}"] = partial(self._move, receptacle)
        for verb, where, gives, takes in TREATMENTS:
            if kind in where and held in problem.those(ABLE[gives]):
                command = f"{verb} {label} with {name}"
                commands[command] = partial(self._treat, command, gives=gives, takes=takes)
        return commands

    def _with_knife(self) -> dict[str, Effect]:
        state, label = self._state, self._names[self._state.held]
        if self._problem.kind.get(state.held) not in KNIVES:
            return {}
        near = [thing for thing, location in state.lying if location == state.at]
        return {
            f"slice {self._names[thing]} with {label}": partial(self._slice, thing)
            for thing in near
            if thing in self._problem.those("sliceable")
        }

    # --- what they do --------------------------------------------------------------------------------------

    def _go(self, receptacle: str) -> str:
        self._state.at = self._problem.location[receptacle]
        return f"You arrive at {self._names[receptacle]}. {seen.contents(self._state, receptacle)}"

    def _open(self, receptacle: str) -> str:
        self._state.marked["opened"].add(receptacle)
        return f"You open the {self._names[receptacle]}. {seen.contents(self._state, receptacle)}"

    def _close(self, receptacle: str) -> str:
        self._state.marked["opened"].discard(receptacle)
        return f"You close the {self._names[receptacle]}."

    def _take(self, thing: str, receptacle: str) -> str:
        state = self._state
        state.held = thing
        state.inside.discard((thing, receptacle))
        state.parted.add((thing, receptacle))
        state.lying.discard((thing, state.at))
        return f"You pick up the {self._names[thing]} from the {self._names[receptacle]}."

    def _move(self, receptacle: str) -> str:
        state = self._state
        thing, state.held = state.held, ""
        state.inside.add((thing, receptacle))
        state.parted.discard((thing, receptacle))
        state.lying.add((thing, state.at))
        return f"You move the {self._names[thing]} to the {self._names[receptacle]}."

    def _treat(self, command: str, *, gives: str, takes: str) -> str:
        """heat mug 1 with microwave 1  ->  You heat the mug 1 using the microwave 1."""
        state = self._state
        state.marked[gives].add(state.held)
        if takes:
            state.marked[takes].discard(state.held)
        verb, _, rest = command.partition(" ")
        return f"You {verb} the {rest.replace(' with ', ' using the ')}."

    def _use(self, thing: str) -> str:
        """A switch is only ever turned on: no rule takes `istoggled` back."""
        self._state.marked["istoggled"].add(thing)
        return f"You turn on the {self._names[thing]}."

    def _slice(self, thing: str) -> str:
        self._state.marked["issliced"].add(thing)
        return f"You sliced the {self._names[thing]} with the {self._names[self._state.held]}."
