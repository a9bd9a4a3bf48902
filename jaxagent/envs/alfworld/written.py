"""A house of our own as a PDDL problem, in the form of the real games' so that both engines read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxagent.envs.alfworld.problem import ABLE

OPENABLE = ("Cabinet", "Drawer", "Fridge", "Microwave", "Safe")
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


def problem_text(layout: Layout, goal: str) -> str:
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


def goal_text(kind: str, target: str, to: str) -> str:
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
