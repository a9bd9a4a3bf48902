"""A few trajectories of a run, token by token, for the viewer of the HTML page: trajectories.jsonl.

One line a trajectory. Tokens are kept as text pieces beside mask, step, log-prob and the step's advantage,
so that the page can be made on a machine without the tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxagent.types import Credited, Segment

TrajectoryRecord = dict[str, Any]


def pick(credited: Sequence[Credited], n: int) -> list[Credited]:
    """The n that say most about an update: both ends of the advantages first, then inwards."""
    mean_N = [float(item.advantage_K.mean()) if item.advantage_K.size else 0.0 for item in credited]
    order = np.argsort(mean_N, kind="stable").tolist()
    inwards = [order[-1 - i // 2] if i % 2 == 0 else order[i // 2] for i in range(len(order))]
    return [credited[i] for i in inwards[:n]]


def trajectory_record(
    credited: Credited, decode: Callable[[Sequence[int]], str], *, iteration: int
) -> TrajectoryRecord:
    """decode: token ids -> text. A character of several tokens shows as the decoder's replacement character."""
    trajectory = credited.trajectory
    return {
        "iteration": iteration,
        "task": trajectory.task.task_id,
        "rollout": trajectory.rollout,
        "status": trajectory.status.value,
        "success": trajectory.success,
        "reward": float(trajectory.reward),
        "failures": list(trajectory.evaluation.failures) if trajectory.evaluation else [],
        "exec_status": [step.exec_status.value for step in trajectory.steps],
        "segments": [_segment(segment, credited.advantage_K, decode) for segment in trajectory.segments],
    }


def _segment(
    segment: Segment, advantage_K: np.ndarray, decode: Callable[[Sequence[int]], str]
) -> dict[str, list[Any]]:
    behaviour_T = segment.logprobs.get("behaviour", np.zeros(segment.ids_T.size, np.float32))
    # where, not indexing by -1: tokens outside a message have no step and advantage 0
    advantage_T = [float(advantage_K[k]) if m else 0.0 for m, k in zip(segment.mask_T, segment.step_T)]
    return {
        "text": [decode([int(token)]) for token in segment.ids_T],
        "mask": [int(m) for m in segment.mask_T],
        "step": [int(k) for k in segment.step_T],
        "advantage": [round(a, 4) for a in advantage_T],
        "logprob": [round(float(x), 4) for x in behaviour_T],
    }


def append_trajectories(path: str | Path, records: Sequence[TrajectoryRecord]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with Path(path).open("a") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")


def read_trajectories(path: str | Path) -> list[TrajectoryRecord]:
    """All lines, a last one that a kill cut left out; none if there is no file. Of a repeated one the last counts."""
    if not Path(path).is_file():
        return []
    found: dict[tuple[Any, ...], TrajectoryRecord] = {}
    for line in Path(path).read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            record = json.loads(line)
            found[record["iteration"], record["task"], record["rollout"]] = record
    return list(found.values())
