"""What an evaluation measures, from one record a task. Success is the environment's verdict, never the return.

    scenario A: tasks [1, 1, 1], scenario B: [1, 0, 1]      TGC 83.3 (tasks solved), SGC 50 (scenarios all solved)

A task that was asked for and has no finished rollout is reported ("missing"). Within a training run it counts as not
solved (`missing_fails`); `jaxagent eval` leaves it out, says so, and plays it when it is started again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxagent.errors import DataError
from jaxagent.eval.intervals import interval
from jaxagent.types import Metrics, Task, Trajectory


@dataclass(frozen=True)
class TaskRecord:
    """One task's rollouts, parallel tuples. `rollout` numbers tell which rollouts of other tasks belong together."""

    task_id: str
    scenario: str
    difficulty: int
    type: str
    rollout: tuple[int, ...]
    success: tuple[bool, ...]
    completion: tuple[float, ...]  # fraction of the unit tests passed
    turns: tuple[int, ...]
    status: tuple[str, ...]
    score: tuple[float, ...] = ()  # the benchmark's own, `Evaluation.info["score"]`; empty where it has none


def read_record(fields: Mapping[str, Any]) -> TaskRecord:
    """From JSON, which has lists where the record has tuples."""
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
    return TaskRecord(**values)


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
            score=_official(done),
        )
        records.append(record)
    return records


def _completion(trajectory: Trajectory) -> float:
    verdict = trajectory.evaluation
    return (
        verdict.passed / verdict.total if verdict is not None and verdict.total else float(trajectory.success)
    )


def _official(done: Sequence[Trajectory]) -> tuple[float, ...]:
    """The benchmark's scores, if it gave one to every rollout."""
    scores = [t.evaluation.info.get("score") if t.evaluation else None for t in done]
    numbers = [float(s) for s in scores if isinstance(s, int | float)]
    return tuple(numbers) if len(numbers) == len(done) else ()


# --- k samples a task ------------------------------------------------------------------------------------


def avg_at_k(score_PK: Float[np.ndarray, "P K"]) -> float:
    """Mean over tasks of the mean of their k samples."""
    return float(score_PK.mean())


def best_at_k(score_PK: Float[np.ndarray, "P K"]) -> float:
    """Mean over tasks of the best of their k samples."""
    return float(score_PK.max(axis=1).mean())


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that k of n samples, drawn without replacement, hold one of the c correct: 1 - C(n-c, k) / C(n, k)."""
    _check_samples(n, c, k)
    return 1.0 - comb(n - c, k) / comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Chance that all k are correct: C(c, k) / C(n, k). Written pass^k (tau-bench)."""
    _check_samples(n, c, k)
    return comb(c, k) / comb(n, k)


def best_of_k(values: Sequence[float | bool], k: int) -> float:
    """Mean of the largest of k values over all choices of k of them: sum_i x_(i) C(i-1, k-1) / C(n, k), x ascending.

    pass@k for values 0 and 1. Drawing with replacement, as is common, is biased low: 1 of 4 correct is 0.684 at k = 4.
    """
    _check_samples(len(values), 0, k)
    ways = comb(len(values), k)
    return sum(value * comb(i, k - 1) for i, value in enumerate(sorted(values))) / ways


def _check_samples(n: int, c: int, k: int) -> None:
    if not 1 <= k <= n:
        raise DataError(f"k={k} is undefined for {n} samples a task; draw at least k samples of every task")
    if not 0 <= c <= n:
        raise DataError(f"{c} of {n} samples are correct; expected 0 to {n}")


# --- scores over tasks and scenarios ---------------------------------------------------------------------


def task_scores(records: Sequence[TaskRecord]) -> Float[np.ndarray, "P"]:
    """Mean success of each task's rollouts; 0 for a task without any."""
    return np.array([np.mean(record.success) if record.success else 0.0 for record in records], np.float64)


def scenario_scores(records: Sequence[TaskRecord], *, missing_fails: bool = True) -> Float[np.ndarray, "C"]:
    """Of each scenario, the share of rollout numbers at which every one of its tasks passes.

    missing_fails: a rollout that is not there fails. Otherwise only numbers count at which all tasks of the scenario
    finished, and a scenario without any is left out.
    """
    every = {number for record in records for number in record.rollout} or {0}
    by_scenario: dict[str, list[TaskRecord]] = defaultdict(list)
    for record in records:
        by_scenario[record.scenario or record.task_id].append(record)
    shares = []
    for members in by_scenario.values():
        numbers = every if missing_fails else set.intersection(*(set(r.rollout) for r in members))
        solved = set.intersection(*(_solved(record) for record in members))
        if numbers:
            shares.append(len(solved & numbers) / len(numbers))
    return np.array(shares, np.float64)


def _solved(record: TaskRecord) -> set[int]:
    return {number for number, success in zip(record.rollout, record.success, strict=True) if success}


def record_metrics(records: Sequence[TaskRecord], *, missing_fails: bool = True) -> Metrics:
    """TGC and SGC in percent with 95 % intervals (`_low`, `_high`), completion, pass@k, splits by kind of task.

    pass_at_k and pass_hat_k are fractions, for powers of two up to the fewest samples that a finished task has.
    Without `missing_fails` everything is over finished tasks, and nothing is returned beside the counts if there are
    none.
    """
    if not records:
        raise DataError("there are no tasks to evaluate; check the split")
    done = [record for record in records if record.success]
    counted = records if missing_fails else done
    metrics: Metrics = {"tasks": float(len(records)), "missing": float(len(records) - len(done))}
    if not counted:
        return metrics
    scores = {"tgc": task_scores(counted), "sgc": scenario_scores(records, missing_fails=missing_fails)}
    for name, value_P in scores.items():
        if value_P.size:
            low, high = interval(value_P)
            metrics |= {
                name: 100 * float(value_P.mean()),
                f"{name}_low": 100 * low,
                f"{name}_high": 100 * high,
            }
    completion_P = np.array([sum(r.completion) / max(len(r.completion), 1) for r in counted])
    metrics["completion"] = float(completion_P.mean())
    metrics["completion_low"], metrics["completion_high"] = interval(completion_P)
    return metrics | _sample_metrics(done) | _score_metrics(done) | _kind_metrics(records, missing_fails)


def _sample_metrics(done: Sequence[TaskRecord]) -> Metrics:
    """What several samples a task say; powers of two up to the fewest, and that number itself for avg and best."""
    metrics: Metrics = {}
    fewest = min((len(record.success) for record in done), default=0)
    for k in (2**i for i in range(fewest.bit_length())):
        metrics[f"pass_at_{k}"] = _mean(pass_at_k(len(r.success), sum(r.success), k) for r in done)
        metrics[f"pass_hat_{k}"] = _mean(pass_hat_k(len(r.success), sum(r.success), k) for r in done)
    if fewest > 1:
        metrics[f"avg_at_{fewest}"] = _mean(_mean(r.success) for r in done)
        metrics[f"best_at_{fewest}"] = _mean(best_of_k(r.success, fewest) for r in done)
        metrics["tgc_std"] = 100 * _deviation_of_runs(done)
    return metrics


def _deviation_of_runs(done: Sequence[TaskRecord]) -> float:
    """Sample standard deviation of the success over rollout numbers that every task has (mean ± std of n runs)."""
    common = sorted(set.intersection(*(set(record.rollout) for record in done)))
    means = [_mean(number in _solved(record) for record in done) for number in common]
    return float(np.std(means, ddof=1)) if len(means) > 1 else 0.0


def _score_metrics(done: Sequence[TaskRecord]) -> Metrics:
    """The benchmark's score over tasks, in the unit of its verdicts, if every finished task has one.

    Not called "score": that is often among the environment's own metrics, times 100.
    """
    if not done or not all(record.score for record in done):
        return {}
    score_P = np.array([_mean(record.score) for record in done])
    low, high = interval(score_P)
    fewest = min(len(record.score) for record in done)
    best = (
        {f"task_score_best_at_{fewest}": _mean(best_of_k(r.score, fewest) for r in done)}
        if fewest > 1
        else {}
    )
    return {"task_score": float(score_P.mean()), "task_score_low": low, "task_score_high": high, **best}


def _kind_metrics(records: Sequence[TaskRecord], missing_fails: bool) -> Metrics:
    """TGC by difficulty and type, SGC by difficulty: a scenario's tasks have one difficulty, but several types."""
    metrics: Metrics = {}
    for kind, members in kinds(records).items():
        counted = members if missing_fails else [record for record in members if record.success]
        if counted:
            metrics[f"tgc_{kind}"] = 100 * float(task_scores(counted).mean())
        sgc_C = scenario_scores(members, missing_fails=missing_fails)
        if kind.startswith("difficulty_") and sgc_C.size:
            metrics[f"sgc_{kind}"] = 100 * float(sgc_C.mean())
    return metrics


def kinds(records: Sequence[TaskRecord]) -> dict[str, list[TaskRecord]]:
    """ "difficulty_2", "type_pick" … -> its tasks, sorted by name."""
    found: dict[str, list[TaskRecord]] = defaultdict(list)
    for record in records:
        found[f"difficulty_{record.difficulty}"].append(record)
        if record.type:
            found[f"type_{record.type}"].append(record)
    return dict(sorted(found.items()))


def _mean(values: Iterable[float | bool]) -> float:
    return float(np.mean(list(values)))
