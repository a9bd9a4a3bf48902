"""Evaluate the policy on a split: one rollout a task at temperature 0, or n at the sampling rule given.

In: tasks and a `rollout` that runs plans under the current weights. Out: metrics, and one record a task as
JSON. How episodes are run, and with which weights, is the caller's.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from jaxagent.errors import ConfigError, DataError, RolloutError
from jaxagent.eval.behaviour import behaviour_metrics, cost_metrics
from jaxagent.eval.metrics import TaskRecord, record_metrics, task_records
from jaxagent.plan import Plan
from jaxagent.stage import Rollout
from jaxagent.types import Metrics, Sampling, Task, Trajectory


@dataclass(frozen=True)
class EvalResult:
    """mode: "greedy" or "sampled". metrics: see eval/metrics.py and eval/behaviour.py; equal for equal episodes.

    own: names of the metrics that are the environment's. cost: measured seconds (eval/cost.py).
    """

    split: str
    mode: str
    n: int
    metrics: Metrics
    records: tuple[TaskRecord, ...]
    dropped: dict[str, int]
    seconds: float
    own: tuple[str, ...] = ()
    cost: Metrics = field(default_factory=dict)

    @property
    def named(self) -> Metrics:
        """Metrics under their names in the log: eval/<split>/<mode>/tgc …"""
        return {f"eval/{self.split}/{self.mode}/{name}": value for name, value in self.metrics.items()}

    def write(self, path: str | Path) -> None:
        """Everything as one JSON file."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(asdict(self), indent=1, allow_nan=False) + "\n")


async def evaluate(
    tasks: Sequence[Task],
    rollout: Rollout,
    *,
    sampling: Sampling,
    n: int = 1,
    split: str = "",
    missing_fails: bool = True,
    benchmark: Callable[[Sequence[Trajectory]], Metrics] | None = None,
) -> EvalResult:
    """Run every task n times under `sampling` and measure.

    missing_fails: whether a task without a finished rollout counts as not solved, or is left out.
    benchmark: the environment's own metrics (`EnvSpec.metrics`); a name that is also ours keeps our value,
    which counts missing tasks.
    """
    if not tasks:
        raise ConfigError("there are no tasks to evaluate; check the split")
    if n < 1:
        raise ConfigError(f"eval n={n}; expected 1 or more rollouts a task")
    greedy = sampling.temperature == 0
    if greedy and n > 1:
        raise ConfigError(
            f"eval n={n} at temperature 0 repeats the same rollout; set n to 1 or the temperature above 0"
        )
    start = time.perf_counter()
    groups = await rollout([Plan(task, n) for task in tasks], sampling)
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    _check_counts(trajectories, n)
    records = task_records(trajectories, tasks)
    own = _checked(benchmark(trajectories)) if benchmark and trajectories else {}
    ours = {
        **behaviour_metrics(trajectories),
        **cost_metrics(trajectories),
        **record_metrics(records, missing_fails=missing_fails),
    }
    return EvalResult(
        split=split or tasks[0].split,
        mode="greedy" if greedy else "sampled",
        n=n,
        metrics={**own, **ours},
        records=tuple(records),
        dropped=dict(Counter(dropped.reason for group in groups for dropped in group.dropped)),
        seconds=time.perf_counter() - start,
        own=tuple(name for name in own if name not in ours),
    )


def _checked(own: Metrics) -> Metrics:
    """The environment's metrics; JSON, and so every file that they go to, has finite numbers only."""
    for name, value in own.items():
        if not math.isfinite(value):
            raise DataError(
                f"the environment's metric {name!r} is {value}; EnvSpec.metrics must return finite numbers, and leave "
                "out what is not defined"
            )
    return own


def _check_counts(trajectories: Sequence[Trajectory], n: int) -> None:
    """Each (task, rollout number) at most once, each task at most n times."""
    seen = Counter((t.task.task_id, t.rollout) for t in trajectories)
    per_task = Counter(t.task.task_id for t in trajectories)
    for (task_id, number), count in seen.items():
        if count > 1 or per_task[task_id] > n:
            raise RolloutError(
                f"task {task_id!r} came back {per_task[task_id]} times ({count} times as rollout {number}); "
                f"expected at most {n}. Is n applied twice, or a task listed twice?"
            )
