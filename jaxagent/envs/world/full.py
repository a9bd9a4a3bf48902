"""The full level's kinds, and which of them each split uses.

dev and the test splits mix kinds of training (other worlds) with kinds that training never shows; every
scenario of test_challenge needs the shop, an app that no other split uses.
"""

from __future__ import annotations

import random

from jaxagent.envs.world.engine import World
from jaxagent.envs.world.goal import Goal
from jaxagent.envs.world.kinds import mail, money, music, notes, phone, shop
from jaxagent.envs.world.kinds.scene import Kind, Scene
from jaxagent.envs.world.people import fresh_world, words

FULL_KINDS: dict[str, Kind] = {
    kind.name: kind for module in (phone, notes, money, mail, music, shop) for kind in module.KINDS
}

TRAIN = words(
    """birthday pintag sendmoney notetodo topsong markread oldnotes additem settle likeplaylist eventplace
    cancelday newnumber countunread finishlist trimlist invitation paymentsum"""
)
DEV = words("oldest indexnote lastpayment unlikeold movewith textlist")
TEST = words(
    """newcontact textall forgetmessages countnotes retag overdue cleartodo splitbill repay labelword
    replymail mailnote busyminutes cancelnotify birthdays genrelist genretime"""
)

FULL_SPLITS: dict[str, tuple[str, ...]] = {  # split -> kind of each scenario
    "train": (*TRAIN, *TRAIN[:12]),
    "dev": (*DEV, *TRAIN[:6]),
    "test_normal": (*TEST, *TRAIN[6:13]),
    "test_challenge": tuple(kind.name for kind in shop.KINDS) * 2,
}


def build_full(kind: str, rng: random.Random, style: random.Random) -> tuple[World, Goal]:
    """The world and the goal of one task; `style` is shared by the three tasks of a scenario."""
    world = fresh_world(rng)
    return world, FULL_KINDS[kind].make(Scene(world, rng, style))
