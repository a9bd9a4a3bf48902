"""Any environment, made to fail on demand: `check_faults(spec, task)` runs every fault through a real pool.

The policy asks for a fault: a message "!hang" hangs the environment that gets it, whatever the environment is. So one
group holds healthy rollouts and failing ones of one task, as in a run where one of many environments breaks.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from jaxagent.credit.group import leave_one_out, per_group
from jaxagent.envs.pool import Deadlines, EnvPool
from jaxagent.envs.protocol import Env, EnvSpec
from jaxagent.plan import Plan
from jaxagent.rollout.plans import RolloutRules, run_plans
from jaxagent.types import (
    Action,
    Evaluation,
    Group,
    Message,
    Metrics,
    Status,
    StepResult,
    Task,
    Trajectory,
)
from tests.rollout.fake_policy import Scripted, char_runner

MARK = "!"
WIDE = 60_000  # characters: no prompt fills this context, the observation "long" overflows it


def _raise(error: BaseException) -> Any:
    raise error


STEP_FAULTS: Mapping[str, tuple[Callable[[], Any], str]] = {
    "raise": (lambda: _raise(ZeroDivisionError("environment bug")), "raised"),
    "hang": (lambda: time.sleep(1000), "hang"),
    "exit": (lambda: os._exit(3), "died"),
    "quit": (lambda: _raise(SystemExit(0)), "died"),
    "kill": (lambda: os.kill(os.getpid(), signal.SIGKILL), "died"),
    "flood": (lambda: StepResult("x" * (50 << 20)), "garbage"),
    "flood_info": (lambda: StepResult("x", info={"log": "x" * (50 << 20)}), "garbage"),
    "nothing": (lambda: None, "garbage"),
    "nan": (lambda: StepResult("x", reward=float("nan")), "garbage"),
    "object": (lambda: StepResult("x", info={"object": object()}), "garbage"),
    "memory": (lambda: _raise(MemoryError("no room")), "raised"),
}
"""Fault -> (what a step does, the reason under which the episode is dropped)."""

LATER_FAULTS = {"evaluate": "raised"}  # the step is answered, then that call raises
DROPS = {name: reason for name, (_, reason) in STEP_FAULTS.items()} | LATER_FAULTS
KILLERS = [name for name, reason in DROPS.items() if reason in ("hang", "died")]
# Two healthy ones; an observation that overflows the context; a failing close.
KEPT = ("", "", "long", "close")


class Faulty:
    """An environment that obeys actions "!fault"; `task.meta["fault"] == "reset"` fails before any action."""

    def __init__(self, make: Callable[[], Env]):
        self._env, self._later = make(), ""

    def reset(self, task: Task) -> StepResult:
        if task.meta.get("fault") == "reset":
            raise RuntimeError("cannot reset")
        return self._env.reset(task)

    def step(self, action: Action) -> StepResult:
        fault = action.text.removeprefix(MARK) if action.text.startswith(MARK) else ""
        if not fault:
            return self._env.step(action)
        if fault in STEP_FAULTS:
            return STEP_FAULTS[fault][0]()
        self._later = fault
        return StepResult("x" * 2 * WIDE if fault == "long" else "later")

    def evaluate(self) -> Evaluation:
        if self._later == "evaluate":
            raise RuntimeError("no verdict")
        return self._env.evaluate()

    def close(self) -> None:
        self._env.close()
        if self._later == "close":
            raise RuntimeError("cannot close")


def faulty(spec: EnvSpec, *, steps: int = 3, alone: bool = True) -> EnvSpec:
    """`spec` with faults on demand, in episodes of at least `steps` steps.

    alone: one environment a worker, so that a killed worker has no other episode.
    """

    def parse(message: Message) -> Action:
        asked = message.content.startswith(MARK)
        return Action(text=message.content) if asked else spec.parse(message)

    return replace(
        spec,
        make=partial(Faulty, spec.make),
        parse=parse,
        worker={**spec.worker, "envs_per_worker": 1} if alone else spec.worker,
        max_observation_chars=WIDE,
        max_steps=max(steps, spec.max_steps),
    )


@dataclass(frozen=True)
class Ran:
    """What a group of healthy and failing rollouts came to."""

    groups: list[Group]
    metrics: Metrics
    again: list[Group]
    counts: Counter[str]
    loads: list[int]


def check_faults(
    spec: EnvSpec,
    task: Task,
    *,
    idle: str = "x",
    at_step: int = 0,
    step_s: float = 5.0,
    reset_s: float = 120.0,
) -> Ran:
    """Every fault in one group: each costs its own episode, and the baseline is that of the survivors.

    idle: what the healthy rollouts say. at_step: the message that asks for the fault; earlier ones say `idle`, which
    must not end the episode. step_s: deadline of a hang.
    """
    said = [*KEPT, *DROPS]
    deadlines = Deadlines(step_s=step_s, reset_s=reset_s)
    ran = asyncio.run(_run(faulty(spec, steps=at_step + 2), task, said, idle, at_step, deadlines))
    group, broken = ran.groups
    reasons = {said[item.rollout]: item.reason for item in group.dropped}
    assert reasons == DROPS, [(item.reason, item.message) for item in group.dropped]
    assert [item.rollout for item in group.trajectories] == list(range(len(KEPT)))
    assert [item.reason for item in broken.dropped] == ["reset"]
    check_kept(group, ran.again[0])
    check_counts(ran, submitted=len(said) + 1)
    return ran


def check_kept(group: Group, again: Group) -> None:
    """Healthy rollouts are what they are among healthy ones; the long one is cut, not lost; credit sees survivors."""
    healthy, long = group.trajectories[:2], group.trajectories[2]
    assert [_seen(item) for item in healthy] == [_seen(item) for item in again.trajectories]
    assert long.status is Status.LENGTH
    assert long.steps[-1].observation_after.endswith(f"[observation cut: {WIDE} more characters]")
    assert all(item.evaluation is not None for item in group.trajectories)
    returns = tuple(replace(item, reward=float(item.rollout)) for item in group.trajectories)  # 0, 1, 2, 3
    advantages = [
        item.advantage_K[0] for item in per_group(leave_one_out)([replace(group, trajectories=returns)])
    ]
    np.testing.assert_allclose(advantages, [0 - 6 / 3, 1 - 5 / 3, 2 - 4 / 3, 3 - 3 / 3], rtol=1e-6)


def check_counts(ran: Ran, *, submitted: int) -> None:
    """Nothing is lost: submitted = kept + dropped, by reason; every place in a worker is free again."""
    reasons = Counter(DROPS.values()) + Counter(["reset"])
    assert ran.metrics["rollout/submitted"] == submitted
    assert ran.metrics["rollout/kept"] == len(KEPT)
    for reason, count in reasons.items():
        assert ran.metrics[f"rollout/dropped/{reason}"] == count
        assert ran.counts[reason] == count + (reason == "raised")  # the failing close is counted, too
    assert ran.counts["restarts"] == len(KILLERS)
    assert ran.counts["opened"] == submitted - 1 + 2
    assert set(ran.loads) == {0}


async def _run(
    spec: EnvSpec, task: Task, said: list[str], idle: str, at_step: int, deadlines: Deadlines
) -> Ran:
    generate = Scripted(
        lambda key: MARK + said[key.rollout] if said[key.rollout] and key.step == at_step else idle
    )
    rules = RolloutRules(concurrency=4, retries=0, stall_s=600.0)
    async with EnvPool(2, deadlines=deadlines) as pool:
        runner = char_runner(spec, generate, pool, max_tokens=400, context=WIDE, max_steps=at_step + 2)
        broken = replace(task, meta={**task.meta, "fault": "reset"})
        groups, metrics = await run_plans([Plan(task, len(said)), Plan(broken, 1)], runner, rules=rules)
        again, _ = await run_plans([Plan(task, 2)], runner, rules=rules)
        return Ran(groups, metrics, again, pool.counts, [worker.load for worker in pool.workers])


def _seen(trajectory: Trajectory) -> tuple[Any, ...]:
    steps = [(step.text, step.exec_status, step.observation_after) for step in trajectory.steps]
    return trajectory.status, steps, trajectory.evaluation
