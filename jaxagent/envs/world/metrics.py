"""AppWorld's metrics over trajectories: TGC, SGC, completion, failed steps. A task may have many rollouts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from jaxagent.types import ExecStatus, Metrics, Trajectory

TASKS_PER_SCENARIO = 3
FAILED = (ExecStatus.SYNTAX_ERROR, ExecStatus.RUNTIME_ERROR, ExecStatus.INVALID, ExecStatus.TIMEOUT)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def goal_completion(trajectories: Sequence[Trajectory]) -> tuple[float, float]:
    """(TGC, SGC) in percent.

    TGC: mean over tasks of the mean success of a task's rollouts. SGC: mean over scenarios and rollout
    numbers of [all three tasks pass]; a missing task counts as a failure. [1,1,1], [1,0,1] -> 83.3, 50.
    """
    by_task: dict[str, list[float]] = defaultdict(list)
    by_scenario: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for trajectory in trajectories:
        task = trajectory.task
        by_task[task.task_id].append(float(trajectory.success))
        passed = by_scenario[task.scenario][trajectory.rollout]
        if trajectory.success:
            passed.add(task.task_id)
    scenarios = [
        mean([float(len(passed) == TASKS_PER_SCENARIO) for passed in rollouts.values()])
        for rollouts in by_scenario.values()
    ]
    return 100 * mean([mean(values) for values in by_task.values()]), 100 * mean(scenarios)


def world_metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """tgc, sgc, the same per difficulty, completion (mean fraction of tests passed), failed_steps, steps."""
    tgc, sgc = goal_completion(trajectories)
    verdicts = [t.evaluation for t in trajectories]
    steps = [step for t in trajectories for step in t.steps if step.exec_status != ExecStatus.NONE]
    found: Metrics = {
        "tgc": tgc,
        "sgc": sgc,
        "completion": 100 * mean([v.passed / v.total if v and v.total else 0.0 for v in verdicts]),
        "failed_steps": mean([float(step.exec_status in FAILED) for step in steps]),
        "steps": mean([float(len(t.steps)) for t in trajectories]),
    }
    for level in sorted({t.task.difficulty for t in trajectories}):
        rows = [t for t in trajectories if t.task.difficulty == level]
        found[f"tgc_{level}"], found[f"sgc_{level}"] = goal_completion(rows)
    return found
