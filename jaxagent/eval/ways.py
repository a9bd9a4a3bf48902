"""Other ways to run an evaluation's plans (`Stage.ways`). What grows while a split is played is skills/shelf.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from jaxagent.plan import Plan
from jaxagent.stage import Opening, Rollout, Way
from jaxagent.types import Group, Sampling


def mode_in(mode: str, way: str) -> str:
    """The mode's name in a way of the stage: "greedy" in the way "skills" is "greedy+skills", and plainly "greedy"."""
    return f"{mode}+{way}" if way else mode


def opened_by(opening: Opening) -> Way:
    """The same plans, every episode opened by `opening`."""

    def way(rollout: Rollout) -> Rollout:
        async def opened(plans: Sequence[Plan], rule: Sampling) -> Sequence[Group]:
            return await rollout([replace(plan, prompt=partial(opening, plan.task)) for plan in plans], rule)

        return opened

    return way
