"""WebRL (arXiv 2411.02337): an advantage between one step and the whole episode, and what is replayed.

    A[k] = lam (r_k + V[k+1] - V[k]) + (1 - lam) (r_K - V[k])        V behind the last step: 0

The loss, a regression of the log-ratio to it, is learn/regression.py's.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from jaxagent.errors import ConfigError
from jaxagent.stage import Filter
from jaxagent.types import Credited, Trajectory


def blended(
    reward_K: Float[np.ndarray, "K"], value_K: Float[np.ndarray, "K"], *, lam: float = 0.5
) -> Float[np.ndarray, "K"]:
    """Advantage of every step. Value .4, then .6, and a last reward of 1: .5 (.2) + .5 (.6) = .4 for the first."""
    if not 0 <= lam <= 1:
        raise ConfigError(f"lam={lam}; expected a share from 0 to 1")
    if not reward_K.size:
        return np.zeros(0)
    next_K = np.append(value_K[1:], 0.0)
    return lam * (reward_K + next_K - value_K) + (1 - lam) * (reward_K[-1] - value_K)


def mean_logprob(trajectory: Trajectory, stream: str) -> float | None:
    """Of the tokens that are sampled; None where there is none."""
    parts = [segment.logprobs[stream][np.asarray(segment.mask_T, bool)] for segment in trajectory.segments]
    every = np.concatenate(parts) if parts else np.zeros(0)
    return float(every.mean()) if every.size else None


def perplexity_band(least: float = 0.5, most: float = 0.95, *, stream: str = "old") -> Filter:
    """Keep successes whose perplexity lies in [1 / most, 1 / least]: what is neither known nor out of reach.

    In probabilities of a token, as a geometric mean over the episode: .99 goes, .8 and .5 stay, .3 goes.
    """
    if not 0 < least < most <= 1:
        raise ConfigError(f"a band of probabilities from {least} to {most}; expected 0 < least < most <= 1")

    def keeps(item: Credited) -> bool:
        mean = mean_logprob(item.trajectory, stream)
        return item.trajectory.success and mean is not None and math.log(least) <= mean <= math.log(most)

    return lambda credited: [item for item in credited if keeps(item)]
