"""What the action masks of an iteration look like. A token leaks if the policy did not sample it and it is trained on.

In: the trajectories that are trained on, and their samples. Out: mask/agent_frac (sampled tokens of all),
mask/all_masked_frac (trajectories without a trained token), mask/trained_equals_sampled (1 or 0) and mask/obs_leak:

    token   p p p  a a e  o o o  a a        mask   0 0 0  1 1 1  0 0 0  1 1      agent_frac 5/11, no leak
    step   -1-1-1  0 0 0 -1-1-1  1 1        mask   0 0 0  1 1 1  1 0 0  1 1      obs_leak 1
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxagent.types import Metrics, Sample, Trajectory


def mask_metrics(trajectories: Sequence[Trajectory], samples: Sequence[Sample]) -> Metrics:
    """A term may include observations (a world model learns them); it leaks only where an advantage gets there."""
    segments = [segment for trajectory in trajectories for segment in trajectory.segments]
    tokens = sum(segment.mask_T.size for segment in segments)
    if not tokens:
        return {}
    leaks = sum(int((segment.mask_T & (segment.step_T < 0)).sum()) for segment in segments)
    leaks += sum(
        int((_trained(sample) & (sample.advantage_T != 0) & (sample.step_T < 0)).sum()) for sample in samples
    )
    trained = {sample.trajectory for sample in samples if _trained(sample).any()}
    return {
        "mask/agent_frac": sum(int(segment.mask_T.sum()) for segment in segments) / tokens,
        "mask/all_masked_frac": 1 - len(trained) / len(trajectories),
        "mask/trained_equals_sampled": float(all(_whole(trajectory) for trajectory in trajectories)),
        "mask/obs_leak": float(leaks),
    }


def _trained(sample: Sample) -> np.ndarray:
    """Tokens that some term includes."""
    return np.any([np.zeros(sample.ids_T.shape, bool), *(w != 0 for w in sample.include.values())], axis=0)


def _whole(trajectory: Trajectory) -> bool:
    """Whether as many tokens are marked as the steps say were sampled."""
    marked = sum(int(segment.mask_T.sum()) for segment in trajectory.segments)
    return marked == sum(len(step.ids_T) for step in trajectory.steps)
