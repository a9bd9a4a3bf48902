"""What the player reads, word for word as ALFWorld's grammar has it. In: a `State`. Out: text."""

from __future__ import annotations

from collections.abc import Sequence

from jaxagent.envs.alfworld.state import State

NOTHING = "Nothing happens."
WELCOME = "-= Welcome to TextWorld, ALFRED! =-"
MIDDLE = "You are in the middle of a room. Looking quickly around you, you see"
HELP = """\
Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""


def listing(items: Sequence[str]) -> str:
    """nothing | a | a, and b | a, b, and c"""
    if len(items) < 2:
        return items[0] if items else "nothing"
    return ", ".join(items[:-1]) + f", and {items[-1]}"


def _named(state: State, ids: Sequence[str]) -> str:
    return listing([f"a {state.problem.names[name]}" for name in ids])


def introduction(state: State, task: str) -> str:
    view = look(state) if state.here else f"{MIDDLE} {_named(state, list(state.problem.location))}."
    return f"{WELCOME}\n\n{view}\n\nYour task is to: {task}"


def look(state: State) -> str:
    """Beside a receptacle: what was taken from it and lies at its location all the same, in another receptacle.

    In the middle of the room a `look` lists nothing, unlike the introduction: so it is in the package's grammar.
    """
    here, names = state.here, state.problem.names
    if not here:
        return f"{MIDDLE} nothing."
    things = sorted(thing for thing, location in state.lying if location == state.at)
    beside = [thing for thing in things for receptacle in here if (thing, receptacle) in state.parted]
    facing = listing([names[receptacle] for receptacle in here])
    return f"You are facing the {facing}. Next to it, you see {_named(state, beside)}."


def inventory(state: State) -> str:
    held = state.problem.names.get(state.held)
    return f"You are carrying: a {held}." if held else "You are not carrying anything."


def contents(state: State, receptacle: str) -> str:
    name, inside = state.problem.names[receptacle], _named(state, state.contents(receptacle))
    if receptacle not in state.problem.those("openable"):
        return f"On the {name}, you see {inside}."
    return (
        f"The {name} is closed."
        if state.closed(receptacle)
        else f"The {name} is open. In it, you see {inside}."
    )


def description(state: State, thing: str) -> str:
    name, problem = state.problem.names[thing], state.problem
    if thing in problem.those("isreceptacleobject"):
        inner = sorted(item for item, outer in problem.pairs("inreceptacleobject") if outer == thing)
        return f"This is a normal {name}. In it, you see {_named(state, inner)}."
    clean, sliced = state.is_("isclean", thing), state.is_("issliced", thing)
    warmth = "hot" if state.is_("ishot", thing) else "cool" if state.is_("iscool", thing) else ""
    words = [warmth, *(["and"] if warmth and clean else []), *(["clean"] if clean else [])]
    if sliced or clean:
        return f"This is a {' '.join(filter(None, [*words, 'sliced' if sliced else '', name]))}."
    if warmth:
        return f"This is a {'hot' if warmth == 'hot' else 'cold'} {name}."
    if thing in problem.those("toggleable") and state.is_("istoggled", thing):
        return f"This {name} is on."
    return f"There's nothing special about {name}."
