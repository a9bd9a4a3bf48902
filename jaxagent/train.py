"""The loop. It executes any stage and knows no algorithm.

In: stages (stage.py) and a `Runtime` (runtime.py) that owns the devices, the environments and the run folder.
Out: trained parameters in the runtime, metrics in the run folder. The order inside an iteration is fixed:

    collect → reopen → score → reward → credit → filter → teacher → samples → update → hand-off → observe
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from jaxagent.batch.masks import mask_metrics
from jaxagent.batch.mismatch import difference_metrics
from jaxagent.checks import check_parity, own
from jaxagent.clock import PYTHON
from jaxagent.collected import Collected
from jaxagent.collector import Collector
from jaxagent.credit.stats import credit_metrics, group_metrics, lost_metrics
from jaxagent.errors import DivergenceError
from jaxagent.eval.conduct import conduct_metrics
from jaxagent.learner import Learner
from jaxagent.plan import Plan
from jaxagent.rollout.staleness import sampled_as_old
from jaxagent.run_state import Place
from jaxagent.runtime import Runtime
from jaxagent.stage import Stage
from jaxagent.teacher import taught
from jaxagent.types import Credited, Group, Metrics


def train(stages: Sequence[Stage], run: Runtime) -> None:
    """Run every stage to its end, from wherever the newest checkpoint stands. Raises Preempted when asked to stop."""
    place = run.restore(stages)
    while place.stage < len(stages):
        place = train_stage(stages, run, place)


def train_stage(stages: Sequence[Stage], run: Runtime, place: Place) -> Place:
    """One stage from `place` to its end, or until the run goes back after a collapse. Returns where to go on."""
    stage, index, go_on = stages[place.stage], place.stage, place
    learner = run.begin(stage, place)
    for iteration in range(place.iteration, stage.iterations):
        done = Place(index, iteration + 1) if iteration + 1 < stage.iterations else Place(index + 1)
        try:
            metrics = iterate(stage, run, learner, iteration)
        except DivergenceError as error:
            return run.guard.diverged(stages, iteration + 1, error)
        go_on = run.finish_iteration(stages, done, metrics)
        if go_on != done:
            break
    return go_on


def iterate(stage: Stage, run: Runtime, learner: Learner, iteration: int) -> Metrics:
    """One iteration of one stage; returns its metrics."""
    clock = run.clock
    learner.at(iteration)
    collected = collect(stage, run.collector, iteration)
    clock.lap("collect")
    groups = collected.groups
    if run.collector.max_lag and stage.rolls_out and "old" not in stage.needs:
        # Without it the loss would take the present policy for the one that sampled.
        groups = sampled_as_old(groups)
    if run.first_rollout(groups):
        check_parity(learner.score(own(groups), "old"), run.parity_tolerance)
    groups = stage.reopen(groups) if stage.reopen else groups
    groups = learner.score(groups, *stage.needs)  # the sampler's own log-probs are never used as old ones
    clock.lap("score")
    groups = stage.reward(groups) if stage.reward else groups
    run.keep(groups)
    credited = credit(stage, groups)
    run.show(credited)
    clock.lap("credit")
    kept = stage.filter(credited) if stage.filter else credited  # the baseline has seen all
    taught_credit, teaching = taught(kept, stage.teacher, learner, run.renderer)
    clock.lap("teacher")
    samples = stage.samples(taught_credit)
    metrics = learner.update(samples, seed=(run.seed, run.state.index, iteration))
    clock.lap("update")
    if metrics["update/steps"]:
        run.weights.hand_off(learner)
    clock.lap("hand_off")
    if "old" in stage.needs:
        metrics |= difference_metrics(own(groups))
    if stage.filter:
        trained = set(map(id, kept))  # a filter may add to what it hands on: replay does
        metrics["filter/dropped"] = float(sum(id(item) not in trained for item in credited))
    if stage.measure:
        metrics |= stage.measure(groups, samples)
    observed = stage.source.observe(groups)
    measured = mask_metrics([item.trajectory for item in taught_credit], samples)
    if stage.credit:
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        measured |= {**group_metrics(groups), **credit_metrics(credited), **conduct_metrics(trajectories)}
        measured |= lost_metrics(collected.groups, groups)
    clock.lap(PYTHON)
    return {**collected.metrics, **measured, **teaching, **metrics, **observed, **clock.take(stage.name)}


def collect(stage: Stage, collector: Collector, iteration: int) -> Collected:
    """The iteration's groups. With a lag, those of the next iterations are begun before this one is learnt from."""
    waiting = collector.ahead.take(iteration) or begin(stage, collector, iteration)
    collected = waiting()
    for later in collector.may_begin(stage, iteration):
        collector.ahead.keep(later, begin(stage, collector, later))
    return collector.fresh(stage, collected)


def begin(stage: Stage, collector: Collector, iteration: int) -> Callable[[], Collected]:
    """An iteration's groups, to be waited for: rolled out by the current policy, or ready ones (demonstrations)."""
    work = stage.source.next(iteration)
    plans = [item for item in work if isinstance(item, Plan)]
    if not plans:
        ready = Collected(tuple(item for item in work if isinstance(item, Group)), {})
        return lambda: ready
    return collector.ahead.run(partial(collector.rollout, stage, plans, iteration))


def credit(stage: Stage, groups: Sequence[Group]) -> list[Credited]:
    """Advantages; without an estimator every step has advantage 1 (imitation)."""
    if stage.credit is None:
        return [
            Credited(trajectory, np.ones(len(trajectory.steps), np.float32))
            for group in groups
            for trajectory in group.trajectories
        ]
    return stage.credit(groups)
