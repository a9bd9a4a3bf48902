"""Which episodes a list of plans asks for, and how their outcomes become groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from jaxagent.errors import ConfigError
from jaxagent.plan import Plan
from jaxagent.rollout.branch import branch_name
from jaxagent.types import Dropped, Group, Trajectory


@dataclass(frozen=True)
class Slot:
    """One episode to run: where it belongs in the result, and the rollout number of its random stream."""

    plan: int
    rollout: int


Outcome = Trajectory | Dropped


def slots_of(plans: Sequence[Plan]) -> list[Slot]:
    """A task, or a place, that is planned twice under one label goes on counting: no stream is used twice.

    A plan that says its first number (the place of its chain) has it, and later ones go on after the highest.
    """
    used: Counter[tuple[str, str]] = Counter()
    seen: set[tuple[str, str, int]] = set()
    slots: list[Slot] = []
    for index, plan in enumerate(plans):
        if plan.n < 1:
            raise ConfigError(
                f"the plan of task {plan.task.task_id!r} asks for {plan.n} rollouts; at least 1"
            )
        name = (branch_name(plan.branch) if plan.branch else plan.task.task_id, plan.label)
        first = used[name] if plan.first is None else plan.first
        numbers = range(first, first + plan.n)
        if twice := seen & {(*name, number) for number in numbers}:
            raise ConfigError(
                f"rollout {min(twice)[-1]} of task {plan.task.task_id!r} is planned twice under label {plan.label!r}; "
                "both would draw from one random stream"
            )
        seen |= {(*name, number) for number in numbers}
        slots += [Slot(index, number) for number in numbers]
        used[name] = max(used[name], first + plan.n)
    return slots


def group_name(plans: Sequence[Plan], index: int) -> tuple[str, str | int]:
    """What the plans of one group have in common."""
    return plans[index].task.task_id, plans[index].group or index


def groups_of(plans: Sequence[Plan], slots: Sequence[Slot], outcomes: dict[Slot, Outcome]) -> list[Group]:
    """A group a plan that has slots; plans of one task under one group name share theirs, which stands where the first
    did."""
    by_plan: list[list[Outcome]] = [[] for _ in plans]
    for slot in slots:
        by_plan[slot.plan].append(outcomes[slot])
    shared: dict[tuple[str, str | int], list[int]] = {}
    for index in sorted({slot.plan for slot in slots}):
        shared.setdefault(group_name(plans, index), []).append(index)
    return [_group(plans[members[0]], [by_plan[index] for index in members]) for members in shared.values()]


def _group(plan: Plan, outcomes: Sequence[Sequence[Outcome]]) -> Group:
    items = [item for of_plan in outcomes for item in of_plan]
    return Group(
        task=plan.task,
        trajectories=tuple(item for item in items if isinstance(item, Trajectory)),
        dropped=tuple(item for item in items if isinstance(item, Dropped)),
        position=plan.position,
    )
