"""Many episodes at once: plans in, groups out, nothing lost.

Every episode that is submitted ends as kept or as `Dropped(reason)`; the sums are checked. An environment
failure is retried with the same random stream, then dropped, never scored 0. Groups come in the order of the
plans and trajectories in the order of their rollout numbers, whatever finished first.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast, runtime_checkable

from jaxagent.errors import ConfigError, EnvFailure, RolloutError
from jaxagent.rollout.branch import branch_name
from jaxagent.rollout.stats import rollout_metrics
from jaxagent.stage import Plan
from jaxagent.types import Dropped, Group, Metrics, Prompt, Task, Trajectory


@runtime_checkable
class Runner(Protocol):
    """`functools.partial(run_episode, spec, generate=…, pool=…, …)`, or a fake of it. Plans with a branch, or with
    actions before the first message, need one that takes them as the keywords `branch` and `before`."""

    async def __call__(
        self,
        task: Task,
        /,
        *,
        rollout: int,
        prompt: Callable[[Prompt], Prompt] | None,
        label: str,
    ) -> Trajectory: ...


@dataclass(frozen=True)
class Quorum:
    """Stop once `fraction` of all episodes and `per_task` of each plan's are done; cut the stragglers.

    Cut episodes are dropped as "cancelled". Results then depend on timing, so it is off unless asked for.
    """

    fraction: float
    per_task: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ConfigError(f"rollout.quorum.fraction={self.fraction}; expected a number in (0, 1]")


@dataclass(frozen=True)
class RolloutRules:
    """concurrency: live episodes. retries: re-runs after an environment failure.

    stall_s: raise if no episode ends for so long, naming those that are open (0 waits for ever).
    """

    concurrency: int = 64
    retries: int = 5
    quorum: Quorum | None = None
    stall_s: float = 7200.0

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ConfigError(f"rollout.concurrency={self.concurrency}; at least 1 episode must be live")


@dataclass(frozen=True)
class _Slot:
    """One episode to run: where it belongs in the result, and the rollout number of its random stream."""

    plan: int
    rollout: int


Outcome = Trajectory | Dropped


async def run_plans(
    plans: Sequence[Plan],
    runner: Runner,
    *,
    rules: RolloutRules | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Group], Metrics]:
    """Run every plan's episodes; one group a plan, or a group name. `progress(done, total)` follows each episode."""
    rules = rules or RolloutRules()
    slots = _slots(plans)
    live, attempts = asyncio.Semaphore(rules.concurrency), Counter[str]()
    running: dict[asyncio.Task[Outcome], _Slot] = {}
    for slot in slots:
        job = _with_retries(plans[slot.plan], slot.rollout, runner, rules.retries, live, attempts)
        running[asyncio.ensure_future(job)] = slot
    outcomes: dict[_Slot, Outcome] = {}
    try:
        await _collect(running, outcomes, plans, rules, progress)
    finally:
        for job in running:
            job.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    for job, slot in running.items():
        if job.cancelled():
            task_id = plans[slot.plan].task.task_id
            outcomes[slot] = Dropped(task_id, slot.rollout, "cancelled", "cut by the quorum")
        else:  # it ended between the quorum and the cut
            outcomes[slot] = job.result()
    groups = _groups(plans, slots, outcomes)
    _expect_survivors(groups)
    return groups, rollout_metrics(groups, submitted=len(slots), retries=attempts["retries"])


async def _collect(
    running: dict[asyncio.Task[Outcome], _Slot],
    outcomes: dict[_Slot, Outcome],
    plans: Sequence[Plan],
    rules: RolloutRules,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Move ended jobs from `running` to `outcomes` until all are done or the quorum is met."""
    total = len(running)
    while running and not _quorum_met(rules.quorum, outcomes, plans):
        ended, _ = await asyncio.wait(
            running, timeout=rules.stall_s or None, return_when=asyncio.FIRST_COMPLETED
        )
        if not ended:
            names = sorted(f"{plans[slot.plan].task.task_id}:{slot.rollout}" for slot in running.values())
            shown = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
            raise RolloutError(f"no episode ended for {rules.stall_s:g} s; open: {shown}")
        for job in ended:
            outcomes[running.pop(job)] = job.result()
            if progress is not None:
                progress(len(outcomes), total)


async def _with_retries(
    plan: Plan, rollout: int, runner: Runner, retries: int, live: asyncio.Semaphore, attempts: Counter[str]
) -> Outcome:
    """One episode, re-run after environment failures. Other exceptions are faults of ours and get out.

    An eviction is not its own failure and costs no retry; the failing episode's retries bound how many there are.
    """
    task_id, failures = plan.task.task_id, 0
    run = cast(
        "Callable[..., Awaitable[Trajectory]]", runner
    )  # `branch` and `before` are for those who take them
    if plan.branch is not None:
        run = partial(run, branch=plan.branch)
    if plan.before is not None:
        run = partial(run, before=plan.before)
    async with live:
        while True:
            try:
                trajectory = await run(plan.task, rollout=rollout, prompt=plan.prompt, label=plan.label)
            except EnvFailure as exc:
                failures += exc.kind != "evicted"
                if failures > retries:
                    return Dropped(task_id, rollout, exc.kind, str(exc))
                attempts["retries"] += 1
                continue
            if trajectory.status.dropped:
                return Dropped(task_id, rollout, trajectory.status.value)
            return trajectory


def _slots(plans: Sequence[Plan]) -> list[_Slot]:
    """A task, or a place, that is planned twice under one label goes on counting: no stream is used twice.

    A plan that says its first number (the place of its chain) has it, and later ones go on after the highest.
    """
    used: Counter[tuple[str, str]] = Counter()
    seen: set[tuple[str, str, int]] = set()
    slots: list[_Slot] = []
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
        slots += [_Slot(index, number) for number in numbers]
        used[name] = max(used[name], first + plan.n)
    return slots


def _quorum_met(quorum: Quorum | None, outcomes: dict[_Slot, Outcome], plans: Sequence[Plan]) -> bool:
    if quorum is None:
        return False
    kept: Counter[int] = Counter()
    lost: Counter[int] = Counter()
    for slot, outcome in outcomes.items():
        (kept if isinstance(outcome, Trajectory) else lost)[slot.plan] += 1
    enough = all(
        kept[index] >= min(quorum.per_task, plan.n - lost[index]) for index, plan in enumerate(plans)
    )
    return enough and len(outcomes) >= quorum.fraction * sum(plan.n for plan in plans)


def _expect_survivors(groups: Sequence[Group]) -> None:
    """An environment that fails in every episode is broken, not unlucky: stop with what it said."""
    dropped = [item for group in groups for item in group.dropped]
    if dropped and not any(group.trajectories for group in groups):
        reasons = dict(Counter(item.reason for item in dropped))
        first = dropped[0].message or "no message"
        raise RolloutError(f"not one of {len(dropped)} episodes survived: {reasons}. The first one: {first}")


def _groups(plans: Sequence[Plan], slots: Sequence[_Slot], outcomes: dict[_Slot, Outcome]) -> list[Group]:
    """A group a plan; plans of one task under one group name share theirs, which stands where the first did."""
    by_plan: list[list[Outcome]] = [[] for _ in plans]
    for slot in slots:
        by_plan[slot.plan].append(outcomes[slot])
    shared: dict[tuple[str, str | int], list[int]] = {}
    for index, plan in enumerate(plans):
        shared.setdefault((plan.task.task_id, plan.group or index), []).append(index)
    return [_group(plans[members[0]], [by_plan[index] for index in members]) for members in shared.values()]


def _group(plan: Plan, outcomes: Sequence[Sequence[Outcome]]) -> Group:
    items = [item for of_plan in outcomes for item in of_plan]
    return Group(
        task=plan.task,
        trajectories=tuple(item for item in items if isinstance(item, Trajectory)),
        dropped=tuple(item for item in items if isinstance(item, Dropped)),
        position=plan.position,
    )
