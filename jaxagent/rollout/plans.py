"""Many episodes at once: plans in, groups out, nothing lost.

Every episode that is submitted ends as kept or as `Dropped(reason)`; the sums are checked. An environment
failure is retried with the same random stream, then dropped, never scored 0. Groups come in the order of the
plans and trajectories in the order of their rollout numbers, whatever finished first.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxagent.errors import ConfigError, EnvFailure, RolloutError
from jaxagent.plan import Plan
from jaxagent.rollout.slots import Outcome, Slot, group_name, groups_of, slots_of
from jaxagent.rollout.stats import rollout_metrics
from jaxagent.types import Dropped, Group, Metrics, Trajectory


@runtime_checkable
class Runner(Protocol):
    """Plays one episode of a plan: `functools.partial(run_episode, setup)`, or a fake of it."""

    async def __call__(self, plan: Plan, rollout: int, /) -> Trajectory: ...


@dataclass(frozen=True)
class Quorum:
    """Stop once `fraction` of all episodes and `per_task` of each plan's are done; cut the stragglers.

    Cut episodes are dropped as "cancelled". Results then depend on timing, so it is off unless asked for.
    hold: instead of cutting, stop once `fraction` is done and a group is whole; groups that are not go on playing, and
          are given whole by the next `run_plans` (partial rollouts). It needs a `Held`.
    """

    fraction: float
    per_task: int = 1
    hold: bool = False

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


class Held:
    """Groups that go on playing between two `run_plans`: their plans, episodes, and what has ended of them."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self.slots: list[Slot] = []
        self.outcomes: dict[Slot, Outcome] = {}
        self.running: dict[asyncio.Task[Outcome], Slot] = {}

    def clear(self) -> None:
        self.plans, self.slots, self.outcomes, self.running = [], [], {}, {}

    @property
    def episodes(self) -> int:
        return len(self.slots)

    async def finish(self, stall_s: float) -> list[Group]:
        """Play on to the end; the groups, and nothing is held any more."""
        await _collect(self.running, self.outcomes, self.plans, RolloutRules(stall_s=stall_s), None)
        groups = groups_of(self.plans, self.slots, self.outcomes)
        self.clear()
        return groups

    def take(self, plans: Sequence[Plan], slots: Sequence[Slot], outcomes: dict[Slot, Outcome]) -> set[int]:
        """Note the plans whose group is not whole; returns their numbers. Their running episodes are added by the
        caller."""
        missing = {group_name(plans, slot.plan) for slot in slots if slot not in outcomes}
        kept = {index for index in range(len(plans)) if group_name(plans, index) in missing}
        self.plans, self.slots = list(plans), [slot for slot in slots if slot.plan in kept]
        self.outcomes = {slot: item for slot, item in outcomes.items() if slot.plan in kept}
        return kept

    async def cancel(self) -> None:
        """Give up what is held."""
        for job in self.running:
            job.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)
        self.clear()


async def run_plans(
    plans: Sequence[Plan],
    runner: Runner,
    *,
    rules: RolloutRules | None = None,
    progress: Callable[[int, int], None] | None = None,
    held: Held | None = None,
) -> tuple[list[Group], Metrics]:
    """Run every plan's episodes; one group a plan, or a group name. `progress(done, total)` follows each episode.

    held: what the last call left playing. Its groups come first, whole; what this call leaves is in it afterwards.
    """
    rules, held = rules or RolloutRules(), held or Held()
    slots, carried = slots_of(plans), held.episodes
    live, attempts = asyncio.Semaphore(rules.concurrency), Counter[str]()
    running: dict[asyncio.Task[Outcome], Slot] = {}
    for slot in slots:
        job = _with_retries(plans[slot.plan], slot.rollout, runner, rules.retries, live, attempts)
        running[asyncio.ensure_future(job)] = slot
    outcomes: dict[Slot, Outcome] = {}
    kept: set[int] = set()
    try:
        await _collect(running, outcomes, plans, rules, progress)
        groups = await held.finish(rules.stall_s) if carried else []
        for job in [job for job in running if job.done()]:  # it ended while others were waited for
            outcomes[running.pop(job)] = job.result()
        if running and rules.quorum is not None and rules.quorum.hold:
            kept = held.take(plans, slots, outcomes)
            held.running, running = running, {}
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
    groups += groups_of(plans, [slot for slot in slots if slot.plan not in kept], outcomes)
    _expect_survivors(groups)
    counts = {"submitted": len(slots), "retries": attempts["retries"]}
    return groups, rollout_metrics(groups, **counts, held_in=carried, held_out=held.episodes)


async def _collect(
    running: dict[asyncio.Task[Outcome], Slot],
    outcomes: dict[Slot, Outcome],
    plans: Sequence[Plan],
    rules: RolloutRules,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Move ended jobs from `running` to `outcomes` until all are done or the quorum is met."""
    total = len(running) + len(outcomes)
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
    async with live:
        while True:
            try:
                trajectory = await runner(plan, rollout)
            except EnvFailure as exc:
                failures += exc.kind != "evicted"
                if failures > retries:
                    return Dropped(task_id, rollout, exc.kind, str(exc))
                attempts["retries"] += 1
                continue
            if trajectory.status.dropped:
                return Dropped(task_id, rollout, trajectory.status.value)
            return trajectory


def _quorum_met(quorum: Quorum | None, outcomes: dict[Slot, Outcome], plans: Sequence[Plan]) -> bool:
    if quorum is None:
        return False
    if quorum.hold:
        done = Counter(group_name(plans, slot.plan) for slot in outcomes)
        size = Counter[tuple[str, str | int]]()
        for index, plan in enumerate(plans):
            size[group_name(plans, index)] += plan.n
        whole = any(done[name] == size[name] for name in size)
        return whole and len(outcomes) >= quorum.fraction * sum(plan.n for plan in plans)
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
