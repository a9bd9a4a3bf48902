"""Sub-tasks that are trained one after another: ProST's schedule for supervised training (arXiv 2509.04508).

In: the sub-task of every step, numbered from 1, and the epoch. Out: which steps have weight. The context always holds
the whole episode; at the last epoch this is training with failed steps masked (`mask_errors` in batch/targets.py).

    5 sub-tasks, 3 epochs   {2, 3}   {1, 2, 3, 4}   {1, 2, 3, 4, 5}
    sub-task of a step       1 1 2 2 2 3 3
    first epoch              0 0 1 0 1 1 1          the fourth step failed
    last epoch               1 1 1 0 1 1 1
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
from jaxtyping import Float

from jaxagent.errors import ConfigError
from jaxagent.types import Step

START = (2, 3)


def trained_subtasks(n: int, *, epoch: int, epochs: int, start: Collection[int] = START) -> set[int]:
    """Those trained in `epoch` (from 0) of `epochs`: `start` first, then earlier ones backwards, then later ones.

    Their number grows evenly: |S_e| = ceil(|S_0| + (n - |S_0|) e / (epochs - 1)). Two sub-tasks or fewer are all
    trained at once. Published are {2, 3}, then 1 to 3, and all in the last epoch; the growth between them is ours.
    """
    if not 0 <= epoch < epochs:
        raise ConfigError(f"epoch={epoch} of {epochs}; expected 0 to {epochs - 1}")
    first = sorted(number for number in start if 1 <= number <= n)
    if n <= 2 or epochs == 1 or not first:
        return set(range(1, n + 1))
    earlier = range(first[0] - 1, 0, -1)
    rest = [number for number in (*earlier, *range(first[0], n + 1)) if number not in first]
    size = math.ceil(len(first) + (n - len(first)) * epoch / (epochs - 1))
    return set([*first, *rest][:size])


def subtask_weights(
    steps: Sequence[Step], subtask_K: Sequence[int], trained: Collection[int]
) -> Float[np.ndarray, "K"]:
    """1 for a step of a trained sub-task that ran, 0 for any other."""
    if len(steps) != len(subtask_K):
        raise ConfigError(
            f"{len(subtask_K)} sub-task numbers for {len(steps)} steps; expected one for every step"
        )
    return np.array(
        [float(number in trained and not step.exec_status.failed) for step, number in zip(steps, subtask_K)],
        np.float32,
    )
