"""Games of our own by ALFWorld's rules, from seeds: no download is needed. Smaller than the real ones.

In: a task (kind, floor plan, seed). Out: a `Game` with its problem in the form of the real ones, so that both engines
play it, and its walkthrough. valid_seen has the floor plans of train, valid_unseen others, as in ALFWorld.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from jaxagent.envs.alfworld.games import CACHED, SPLITS, TYPES, Game
from jaxagent.envs.alfworld.problem import ABLE, display_names, read_problem
from jaxagent.errors import ConfigError
from jaxagent.types import Task

SIZES = {"train": 600, "valid_seen": 60, "valid_unseen": 60}
PLANS = {"train": range(1, 21), "valid_seen": range(1, 21), "valid_unseen": range(21, 29)}
KITCHEN = {  # receptacle -> how many a floor plan may have
    "CounterTop": (1, 3),
    "Cabinet": (2, 6),
    "Drawer": (1, 4),
    "DiningTable": (1, 1),
    "Shelf": (0, 2),
    "Fridge": (1, 1),
    "Microwave": (1, 1),
    "SinkBasin": (1, 1),
    "GarbageCan": (1, 1),
}
BEDROOM = {
    "Bed": (1, 1),
    "Desk": (1, 2),
    "Drawer": (1, 4),
    "Shelf": (1, 3),
    "SideTable": (1, 2),
    "Dresser": (0, 1),
    "Safe": (0, 1),
    "GarbageCan": (1, 1),
}
OPENABLE = ("Cabinet", "Drawer", "Fridge", "Microwave", "Safe")
STORES = (
    "CounterTop",
    "Cabinet",
    "Drawer",
    "DiningTable",
    "Shelf",
    "Desk",
    "SideTable",
    "Dresser",
    "Safe",
    "Bed",
)
DESTINATIONS = (*STORES[:-1], "GarbageCan")
LAMP = "DeskLamp"
THINGS: Mapping[str, tuple[str, ...]] = {  # kitchen thing -> what can be done to it
    "Apple": ("cleanable", "heatable", "coolable"),
    "Bowl": ("cleanable", "coolable"),
    "Bread": ("heatable", "coolable"),
    "Cup": ("cleanable", "heatable", "coolable"),
    "Egg": ("cleanable", "heatable", "coolable"),
    "Fork": ("cleanable",),
    "Mug": ("cleanable", "heatable", "coolable"),
    "Pan": ("cleanable", "coolable"),
    "Plate": ("cleanable", "heatable", "coolable"),
    "SaltShaker": (),
    "Spoon": ("cleanable",),
    "Tomato": ("cleanable", "heatable", "coolable"),
}
BELONGINGS = ("AlarmClock", "Book", "CD", "CellPhone", "CreditCard", "KeyChain", "Pen", "Pencil")
OTHERS = 5  # kinds of things lying about beside the target
WORDS = {
    "pick_and_place_simple": ("put a {target} in {place}.", "put some {target} on {place}."),
    "look_at_obj_in_light": (
        "look at {target} under the desklamp.",
        "examine the {target} with the desklamp.",
    ),
    "pick_clean_then_place_in_recep": (
        "put a clean {target} in {place}.",
        "clean some {target} and put it in {place}.",
    ),
    "pick_heat_then_place_in_recep": (
        "put a hot {target} in {place}.",
        "heat some {target} and put it in {place}.",
    ),
    "pick_cool_then_place_in_recep": (
        "put a cool {target} in {place}.",
        "cool some {target} and put it in {place}.",
    ),
    "pick_two_obj_and_place": ("put two {target} in {place}.", "find two {target} and put them in {place}."),
}
TREATED: Mapping[str, tuple[str, str, str]] = {  # kind of task -> quality, verb, where
    "pick_clean_then_place_in_recep": ("isclean", "clean", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("ishot", "heat", "Microwave"),
    "pick_cool_then_place_in_recep": ("iscool", "cool", "Fridge"),
}


@dataclass(frozen=True)
class Layout:
    """receptacles: id -> kind. place: thing's id -> id of its receptacle; things: id -> kind."""

    receptacles: Mapping[str, str]
    things: Mapping[str, str]
    place: Mapping[str, str]
    kitchen: bool


def generated_tasks(types: Sequence[str], split: str) -> list[Task]:
    if split not in SPLITS:
        raise ConfigError(f"ALFWorld has no split {split!r}; its splits are {', '.join(SPLITS)}")
    tasks = []
    for number in range(SIZES[split]):
        kind, plans = TYPES[number % len(TYPES)], PLANS[split]
        plan = plans[number // len(TYPES) % len(plans)]
        name = f"alfworld/generated/{split}/{kind}/{number}"
        if kind in types:
            task = Task(
                name,
                "alfworld",
                split,
                scenario=f"{kind}-{plan}",
                type=kind,
                seed=number,
                meta={"plan": plan},
            )
            tasks.append(task)
    return tasks


@lru_cache(maxsize=CACHED)
def _generated(task_id: str, kind: str, plan: int) -> Game:
    rng = Random(task_id)  # seeding with a str does not depend on the process's hash seed
    kitchen = kind in TREATED or (kind != "look_at_obj_in_light" and rng.random() < 0.5)
    receptacles = _receptacles(kitchen, plan)
    able = ABLE[TREATED[kind][0]] if kind in TREATED else ""
    kinds = [name for name in (THINGS if kitchen else BELONGINGS) if not able or able in THINGS[name]]
    target = rng.choice(kinds)
    to = rng.choice([name for name in DESTINATIONS if name in receptacles.values()])
    layout = _furnish(receptacles, target, 2 if kind == "pick_two_obj_and_place" else 1, to, rng)
    lit = kind == "look_at_obj_in_light"
    problem = _problem(layout, _goal(kind, target, to))
    goal = rng.choice(WORDS[kind]).format(target=target.lower(), place="desklamp" if lit else to.lower())
    return Game(problem, goal, _walkthrough(layout, problem, kind, target, to))


def generated_game(task: Task) -> Game:
    return _generated(task.task_id, task.type, int(task.meta["plan"]))


def _receptacles(kitchen: bool, plan: int) -> dict[str, str]:
    """Of a floor plan: the same in every game that is played there."""
    rng = Random(f"plan/{kitchen}/{plan}")
    kinds = [
        kind for kind, most in (KITCHEN if kitchen else BEDROOM).items() for _ in range(rng.randint(*most))
    ]
    return {_id(kind, number): kind for number, kind in enumerate(kinds, 1)}


def _id(kind: str, number: int) -> str:
    """The form of the planner's ids; a basin belongs to a sink."""
    return f"Sink_bar_{number:02}_bar_SinkBasin" if kind == "SinkBasin" else f"{kind}_bar_{number:02}"


def _furnish(receptacles: Mapping[str, str], target: str, count: int, to: str, rng: Random) -> Layout:
    """The targets lie anywhere but where they belong."""
    kitchen = "Fridge" in receptacles.values()
    stores = [name for name, kind in receptacles.items() if kind in STORES]
    away = [name for name in stores if receptacles[name] != to]
    others = rng.sample([kind for kind in (THINGS if kitchen else BELONGINGS) if kind != target], OTHERS)
    kinds = [target] * count + [kind for kind in others for _ in range(rng.randint(1, 2))]
    things = {_id(kind, number): kind for number, kind in enumerate(kinds, 51)}
    place = {name: rng.choice(away if kind == target else stores) for name, kind in things.items()}
    if not kitchen:
        lamp = _id(LAMP, 50)
        things[lamp] = LAMP
        place[lamp] = next(name for name, kind in receptacles.items() if kind in ("Desk", "SideTable"))
    return Layout(receptacles, things, place, kitchen)


def _problem(layout: Layout, goal: str) -> str:
    rooms, things = layout.receptacles, layout.things
    location = {name: f"loc_bar_{number:02}" for number, name in enumerate(rooms, 1)}
    kinds = sorted({*things.values()})
    objects = [
        "agent1 - agent",
        "loc_bar_00 - location",
        *(f"{place} - location" for place in location.values()),
    ]
    objects += [*(f"{name} - receptacle" for name in rooms), *(f"{name} - object" for name in things)]
    objects += [
        *(f"{kind}Type - rtype" for kind in sorted({*rooms.values()})),
        *(f"{k}Type - otype" for k in kinds),
    ]
    facts = ["(atLocation agent1 loc_bar_00)"]
    for name, kind in rooms.items():
        facts += [f"(receptacleType {name} {kind}Type)", f"(receptacleAtLocation {name} {location[name]})"]
        facts += [f"(openable {name})"] if kind in OPENABLE else []
    for name, kind in things.items():
        facts += [f"(objectType {name} {kind}Type)", f"(inReceptacle {name} {layout.place[name]})"]
        facts += [f"(objectAtLocation {name} {location[layout.place[name]]})"]
        facts += [f"(toggleable {name})" if kind == LAMP else f"(pickupable {name})"]
        facts += [f"({able} {name})" for able in THINGS.get(kind, ())]
    facts += [
        f"(canContain {room}Type {kind}Type)"
        for room in sorted({*rooms.values()})
        for kind in kinds
        if kind != LAMP
    ]
    lines = [
        "(define (problem generated)",
        "(:domain alfred)",
        "(:objects",
        *objects,
        ")",
        "(:init",
        *facts,
        ")",
    ]
    return "\n".join([*lines, f"(:goal {goal})", ")"])


def _goal(kind: str, target: str, to: str) -> str:
    """The formulas of the real games."""
    if kind == "look_at_obj_in_light":
        return (
            f"(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?ot {LAMP}Type) "
            "(toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r))) "
            f"(exists (?o - object ?a - agent) (and (objectType ?o {target}Type) (holds ?a ?o))))"
        )
    placed = f"(objectType ?{{0}} {target}Type) (receptacleType ?r {to}Type) (inReceptacle ?{{0}} ?r)"
    if kind == "pick_two_obj_and_place":
        second = f"(exists (?o2 - object) (and (not (= ?o1 ?o2)) {placed.format('o2')}))"
        inner = f"(exists (?o1 - object) (and {placed.format('o1')} {second}))"
    else:
        states = {"isclean": "isClean", "ishot": "isHot", "iscool": "isCool"}
        quality = TREATED[kind][0] if kind in TREATED else ""
        extra = f"({ABLE[quality]} ?o) ({states[quality]} ?o) " if quality else ""
        inner = f"(exists (?o - object) (and {extra}{placed.format('o')}))"
    return f"(and (exists (?r - receptacle) {inner}))"


def _walkthrough(layout: Layout, problem: str, kind: str, target: str, to: str) -> tuple[str, ...]:
    names = display_names(read_problem(problem).facts)
    at = {name: names[name.lower()] for name in (*layout.receptacles, *layout.things)}
    first = {room: name for name, room in reversed(list(layout.receptacles.items()))}
    commands: list[str] = []
    opened: set[str] = set()

    def visit(receptacle: str) -> None:
        commands.append(f"go to {at[receptacle]}")
        if layout.receptacles[receptacle] in OPENABLE and receptacle not in opened:
            opened.add(receptacle)
            commands.append(f"open {at[receptacle]}")

    for thing in [name for name, what in layout.things.items() if what == target]:
        source = layout.place[thing]
        visit(source)
        commands.append(f"take {at[thing]} from {at[source]}")
        if kind == "look_at_obj_in_light":
            lamp = next(name for name, what in layout.things.items() if what == LAMP)
            if layout.place[lamp] != source:
                visit(layout.place[lamp])
            return (*commands, f"use {at[lamp]}")
        if kind in TREATED:
            _, verb, where = TREATED[kind]
            commands += [f"go to {at[first[where]]}", f"{verb} {at[thing]} with {at[first[where]]}"]
        visit(first[to])
        commands.append(f"move {at[thing]} to {at[first[to]]}")
    return tuple(commands)
