"""The loop. It executes any stage and knows no algorithm.

In: stages (stage.py) and a `Runtime` (runtime.py) that owns the devices, the environments and the run folder.
Out: trained parameters in the runtime, metrics in the run folder. The order inside an iteration is fixed:

    collect → score → reward → credit → filter → samples → teacher → update → hand-off → observe
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jaxagent.checks import check_groups, check_parity
from jaxagent.learner import Learner
from jaxagent.runtime import Collected, Runtime
from jaxagent.stage import Plan, Stage
from jaxagent.teacher import taught
from jaxagent.types import Credited, Group, Metrics


@dataclass(frozen=True)
class Place:
    """Where a run stands: everything before this iteration of this stage is done."""

    stage: int = 0
    iteration: int = 0


def train(stages: Sequence[Stage], run: Runtime) -> None:
    """Run every stage to its end, from wherever the newest checkpoint stands. Stops early on a preemption."""
    place = run.restore(stages)
    for index, stage in enumerate(stages[place.stage :], place.stage):
        learner = run.begin(stage, index)
        start = place.iteration if index == place.stage else 0
        for iteration in range(start, stage.iterations):
            metrics = iterate(stage, run, learner, iteration)
            done = Place(index, iteration + 1) if iteration + 1 < stage.iterations else Place(index + 1)
            run.finish_iteration(stages, done, metrics)


def iterate(stage: Stage, run: Runtime, learner: Learner, iteration: int) -> Metrics:
    """One iteration of one stage; returns its metrics."""
    clock = Clock()
    collected = collect(stage, run, iteration)
    clock.lap("collect")
    groups = score(collected.groups, stage, learner)
    if run.first_rollout(collected) and "old" not in stage.needs:
        check_parity(learner.score(groups, "old"), run.parity_tolerance)
    clock.lap("score")
    credited = credit(stage, reward(stage, groups))
    credited = taught(credited, stage.teacher, learner, run.renderer)
    clock.lap("teacher")
    samples = stage.samples(credited)
    metrics = learner.update(samples, stage.terms, seed=(run.seed, iteration))
    clock.lap("update")
    if metrics["update/steps"]:
        run.hand_off(learner)
    clock.lap("hand_off")
    observed = stage.source.observe(groups)
    return {**collected.metrics, **check_groups(groups), **credit_metrics(credited), **metrics, **observed, **clock.times}


def collect(stage: Stage, run: Runtime, iteration: int) -> Collected:
    """The iteration's groups: rolled out by the current policy, or ready ones (demonstrations)."""
    work = stage.source.next(iteration)
    if work and isinstance(work[0], Plan):
        return run.rollout(work, stage.sampling, iteration)
    return Collected(tuple(work), {})


def score(groups: Sequence[Group], stage: Stage, learner: Learner) -> Sequence[Group]:
    """Add the token streams that the stage needs before credit; the sampler's own log-probs are never used as old."""
    for stream in stage.needs:
        groups = learner.score(groups, stream)
    return groups


def reward(stage: Stage, groups: Sequence[Group]) -> list[Group]:
    if stage.reward is None:
        return list(groups)
    return [
        replace(group, trajectories=tuple(replace(t, reward=float(stage.reward(t))) for t in group.trajectories))
        for group in groups
    ]


def credit(stage: Stage, groups: Sequence[Group]) -> list[Credited]:
    """Advantages; without an estimator every step has advantage 1 (imitation)."""
    if stage.credit is None:
        return [
            Credited(trajectory, np.ones(len(trajectory.steps), np.float32))
            for group in groups
            for trajectory in group.trajectories
        ]
    credited = stage.credit(groups)
    return stage.filter(credited) if stage.filter else credited


def credit_metrics(credited: Sequence[Credited]) -> Metrics:
    """Size of what will be trained on. Written for an empty list too: all groups may have been filtered."""
    steps = np.concatenate([c.advantage_K for c in credited]) if credited else np.zeros(1, np.float32)
    return {
        "credit/trajectories": float(len(credited)),
        "credit/advantage_mean": float(steps.mean()),
        "credit/advantage_abs": float(np.abs(steps).mean()),
    }


class Clock:
    """Wall seconds between laps, by name."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.times[f"seconds/{name}"] = now - self._last
        self._last = now


Streams = Mapping[str, np.ndarray]
