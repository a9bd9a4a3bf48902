"""KL to a reference inside the reward. In: a trajectory with the streams "old" and "reference". Out: R.

Per action token, r -= beta (log p_old - log p_reference): k1 only, because k2 and k3 are never negative and
would act as a length penalty. Observation tokens never count; the value carries no gradient. With group
baselines the sum over the episode is added to R before the group statistics.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float

from jaxagent.errors import ConfigError, RolloutError
from jaxagent.rewards.returns import Changed
from jaxagent.stage import Returns
from jaxagent.types import Segment, Trajectory


def kl_token_rewards(
    old_T: Float[np.ndarray, "T"],
    reference_T: Float[np.ndarray, "T"],
    mask_T: Bool[np.ndarray, "T"],
    *,
    beta: float,
) -> Float[np.ndarray, "T"]:
    """-beta (old - reference) on action tokens, 0 elsewhere: beta .1, differences .1, -.05 -> -.01, .005."""
    difference_T = np.where(mask_T, old_T - reference_T, 0.0)
    return (-beta * difference_T).astype(np.float32)


def kl_penalty(segment: Segment, *, beta: float) -> Float[np.ndarray, "T"]:
    """`kl_token_rewards` of a segment with the streams "old" and "reference"."""
    missing = [name for name in ("old", "reference") if name not in segment.logprobs]
    if missing:
        raise RolloutError(
            f"KL in the reward needs the log-prob stream(s) {', '.join(missing)}; "
            'give the stage needs=("old", "reference")'
        )
    streams = segment.logprobs
    return kl_token_rewards(streams["old"], streams["reference"], segment.mask_T, beta=beta)


def kl_in_reward(returns: Returns, *, beta: float) -> Returns:
    """`returns` minus beta times each episode's summed k1. The stage needs=("old", "reference")."""
    if beta < 0:
        raise ConfigError(f"kl.coef={beta} would reward distance from the reference; give 0 or more")

    def penalised(trajectory: Trajectory) -> Trajectory:
        total = sum(float(kl_penalty(s, beta=beta).sum(dtype=np.float64)) for s in trajectory.segments)
        return replace(trajectory, reward=trajectory.reward + total)

    return Changed(returns, after=penalised)
