"""Games of our own by ALFWorld's rules, from seeds: no download is needed. Smaller than the real ones.

In: a task (kind, floor plan, seed). Out: a `Game` with its problem in the form of the real ones, so that both engines
play it, and its walkthrough. valid_seen has the floor plans of train, valid_unseen others, as in ALFWorld.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random

from jaxagent.envs.alfworld.games import CACHED, SPLITS, TYPES, Game
from jaxagent.envs.alfworld.problem import ABLE, display_names, read_problem
from jaxagent.envs.alfworld.written import LAMP, OPENABLE, THINGS, TREATED, Layout, goal_text, problem_text
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
    problem = problem_text(layout, goal_text(kind, target, to))
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
