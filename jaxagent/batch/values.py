"""From credited trajectories to samples of a stage with a value function: which tokens each of its terms learns from.

mask           0 0 0 1 1 1 0 0 0 1 1
value, token   0 0 0 1 1 1 0 0 0 1 1        every token is a decision
value, step    0 0 0 1 0 0 0 0 0 1 0        a step is one, taken before its first token
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from jaxagent.batch.targets import policy_samples
from jaxagent.types import Credited, Sample

VALUE = "value"


def value_samples(
    credited: Sequence[Credited], *, terms: Sequence[str] = (), steps: bool = False
) -> list[Sample]:
    """`policy_samples` of the terms and of the term "value". steps: values learn at first tokens of steps only."""
    samples = policy_samples(credited, terms=(*terms, VALUE))
    if not steps:
        return samples
    seen: set[tuple[int, int]] = set()
    return [
        replace(sample, include={**sample.include, VALUE: _first_tokens(sample, seen)}) for sample in samples
    ]


def _first_tokens(sample: Sample, seen: set[tuple[int, int]]) -> Float[np.ndarray, "T"]:
    """The inclusion of the first trained token of each step that no earlier segment has."""
    include_T = sample.include[VALUE]
    first_T = np.zeros_like(include_T)
    for place in np.flatnonzero(include_T):
        step = (sample.trajectory, int(sample.step_T[place]))
        if step not in seen:
            seen.add(step)
            first_T[place] = include_T[place]
    return first_T
