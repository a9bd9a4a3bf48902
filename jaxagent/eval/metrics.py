"""What an evaluation measures, from one record a task. Success is the environment's verdict, never the
return.

    scenario A: tasks [1, 1, 1], scenario B: [1, 0, 1]      TGC 83.3 (tasks solved), SGC 50 (scenarios all
    solved)

A task that was asked for and has no finished rollout counts as not solved in TGC and SGC, and is reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from jaxtyping import Float

from jaxagent.errors import DataError
from jaxagent.eval.intervals import interval
from jaxagent.types import Metrics, Task, Trajectory


@dataclass(frozen=True)
class TaskRecord:
    """One task's rollouts, parallel tuples. `rollout` numbers tell which rollouts of other tasks belong
    together.
    """

    task_id: str
    scenario: str
    difficulty: int
    type: str
    rollout: tuple[int, ...]
    success: tuple[bool, ...]
    completion: tuple[float, ...]  # fraction of the unit tests passed
    turns: tuple[int, ...]
    status: tuple[str, ...]


def task_records(trajectories: Sequence[Trajectory], tasks: Sequence[Task]) -> list[TaskRecord]:
    """One record for each task asked for, in that order, empty if nothing of it finished."""
    by_task: dict[str, list[Trajectory]] = {task.task_id: [] for task in tasks}
    for trajectory in trajectories:
        if trajectory.task.task_id not in by_task:
            raise DataError(f"task {trajectory.task.task_id!r} was evaluated but is not in the split")
        by_task[trajectory.task.task_id].append(trajectory)
    records = []
    for task in tasks:
        done = sorted(by_task[task.task_id], key=lambda t: t.rollout)
        record = TaskRecord(
            task.task_id,
            task.scenario,
            task.difficulty,
            task.type,
            rollout=tuple(t.rollout for t in done),
            success=tuple(t.success for t in done),
            completion=tuple(_completion(t) for t in done),
            turns=tuple(len(t.steps) for t in done),
            status=tuple(t.status.value for t in done),
        )
        records.append(record)
    return records


def _completion(trajectory: Trajectory) -> float:
    verdict = trajectory.evaluation
    return (
        verdict.passed / verdict.total if verdict is not None and verdict.total else float(trajectory.success)
    )


# --- k samples a task ------------------------------------------------------------------------------------


def avg_at_k(score_PK: Float[np.ndarray, "P K"]) -> float:
    """Mean over tasks of the mean of their k samples."""
    return float(score_PK.mean())


def best_at_k(score_PK: Float[np.ndarray, "P K"]) -> float:
    """Mean over tasks of the best of their k samples."""
    return float(score_PK.max(axis=1).mean())


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that k of n samples, drawn without replacement, hold one of the c correct: 1 - C(n-c, k) /
    C(n, k).
    """
    _check_samples(n, c, k)
    return 1.0 - comb(n - c, k) / comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Chance that all k are correct: C(c, k) / C(n, k). Written pass^k (tau-bench)."""
    _check_samples(n, c, k)
    return comb(c, k) / comb(n, k)


def _check_samples(n: int, c: int, k: int) -> None:
    if not 1 <= k <= n:
        raise DataError(f"k={k} is undefined for {n} samples a task; draw at least k samples of every task")
    if not 0 <= c <= n:
        raise DataError(f"{c} of {n} samples are correct; expected 0 to {n}")


# --- scores over tasks and scenarios ---------------------------------------------------------------------


def task_scores(records: Sequence[TaskRecord]) -> Float[np.ndarray, "P"]:
    """Mean success of each task's rollouts; 0 for a task without any."""
    return np.array([np.mean(record.success) if record.success else 0.0 for record in records], np.float64)


def scenario_scores(records: Sequence[TaskRecord]) -> Float[np.ndarray, "C"]:
    """Of each scenario, the share of rollout numbers at which every one of its tasks passes."""
    numbers = sorted({number for record in records for number in record.rollout}) or [0]
    passed: dict[str, list[set[int]]] = defaultdict(list)
    for record in records:
        passed[record.scenario or record.task_id].append(
            {number for number, success in zip(record.rollout, record.success, strict=True) if success}
        )
    return np.array([len(set.intersection(*sets)) / len(numbers) for sets in passed.values()], np.float64)


def record_metrics(records: Sequence[TaskRecord]) -> Metrics:
    """TGC and SGC in percent with 95 % intervals (`_low`, `_high`), completion, pass@k, splits by kind of
    task.

    pass_at_k and pass_hat_k are fractions, for powers of two up to the fewest samples that a finished task
    has.
    """
    if not records:
        raise DataError("there are no tasks to evaluate; check the split")
    metrics: Metrics = {"tasks": float(len(records)), "missing": float(sum(not r.success for r in records))}
    for name, value_P in (("tgc", task_scores(records)), ("sgc", scenario_scores(records))):
        low, high = interval(value_P)
        metrics |= {name: 100 * float(value_P.mean()), f"{name}_low": 100 * low, f"{name}_high": 100 * high}
    metrics["completion"] = float(np.mean([sum(r.completion) / max(len(r.completion), 1) for r in records]))
    done = [record for record in records if record.success]
    fewest = min((len(record.success) for record in done), default=0)
    for k in (2**i for i in range(fewest.bit_length())):
        metrics[f"pass_at_{k}"] = float(np.mean([pass_at_k(len(r.success), sum(r.success), k) for r in done]))
        metrics[f"pass_hat_{k}"] = float(
            np.mean([pass_hat_k(len(r.success), sum(r.success), k) for r in done])
        )
    kinds: dict[str, list[TaskRecord]] = defaultdict(list)
    for record in records:
        kinds[f"difficulty_{record.difficulty}"].append(record)
        if record.type:
            kinds[f"type_{record.type}"].append(record)
    for kind, members in sorted(kinds.items()):
        metrics[f"tgc_{kind}"] = 100 * float(task_scores(members).mean())
        if kind.startswith("difficulty_"):  # a scenario's tasks have one difficulty, but several types
            metrics[f"sgc_{kind}"] = 100 * float(scenario_scores(members).mean())
    return metrics
