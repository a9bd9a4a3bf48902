"""Sampler against trainer: constant token weights for a policy loss, from log-probs that are constants themselves.

In: samples with the streams "old" (trainer) and "behaviour" (sampler). Out: the same with a stream "mismatch" that
`corrected` (learn/terms.py) multiplies the loss by; denominators do not change. rho = exp(old - behaviour). And what
the log says: how far the two are apart (mismatch/*), and what a rule does about it (is/*, importance sampling).

    old [-1, -.5, -2]   behaviour [-1.2, -.5, -3.2]   rho [1.2214, 1, 3.3201], product 4.0552, geometric mean 1.5947
    token_trunc(2)      [1.2214, 1, 2]                 TIS
    token_mask(.5, 2)   [1.2214, 1, 0]                 MIS
    seq_trunc(2)        [2, 2, 2]
    seq_mask(.5, 2)     [0, 0, 0]                      the trajectory is rejected; one that stays has weight 1
    geo_mask(.5, 2)     [1, 1, 1]                      the same by the geometric mean, which does not grow with length

A product over a long trajectory leaves any bounds because of noise alone: .012 a token is 3.3 after 100 tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float

from jaxagent.errors import ConfigError, DataError
from jaxagent.types import Group, Metrics, Sample, Segment

STREAM = "mismatch"
MAX_LOG_RATIO = 20.0

Weigh = Callable[[Float[np.ndarray, "X"]], tuple[Float[np.ndarray, "X"], Bool[np.ndarray, "X"]]]
"""log rho of one trajectory's trained tokens -> (their weights, where the rule has cut or rejected)."""


def token_trunc(cap: float = 2.0) -> Weigh:
    """min(rho_t, cap)."""
    _check_bounds(0.0, cap)

    def weigh(log_X: Float[np.ndarray, "X"]) -> tuple[np.ndarray, np.ndarray]:
        rho_X = _exp(log_X)
        return np.minimum(rho_X, cap), rho_X > cap

    return weigh


def token_mask(low: float = 0.5, high: float = 2.0) -> Weigh:
    """rho_t where low <= rho_t <= high, else 0."""
    _check_bounds(low, high)

    def weigh(log_X: Float[np.ndarray, "X"]) -> tuple[np.ndarray, np.ndarray]:
        rho_X = _exp(log_X)
        outside_X = (rho_X < low) | (rho_X > high)
        return np.where(outside_X, 0.0, rho_X), outside_X

    return weigh


def seq_trunc(cap: float = 2.0) -> Weigh:
    """min(product of the trajectory's rho, cap) on all its tokens."""
    _check_bounds(0.0, cap)

    def weigh(log_X: Float[np.ndarray, "X"]) -> tuple[np.ndarray, np.ndarray]:
        product = _factor(float(log_X.sum()))
        return np.full(log_X.shape, min(product, cap)), np.full(log_X.shape, product > cap)

    return weigh


def seq_mask(low: float = 0.5, high: float = 2.0) -> Weigh:
    """1 on all tokens of a trajectory whose product of rho lies in [low, high], else 0."""
    return _rejecting(low, high, lambda log_X: float(log_X.sum()))


def geo_mask(low: float = 0.5, high: float = 2.0) -> Weigh:
    """1 on all tokens of a trajectory whose geometric mean of rho lies in [low, high], else 0."""
    return _rejecting(low, high, lambda log_X: float(log_X.mean()))


def _rejecting(low: float, high: float, total: Callable[[np.ndarray], float]) -> Weigh:
    _check_bounds(low, high)

    def weigh(log_X: Float[np.ndarray, "X"]) -> tuple[np.ndarray, np.ndarray]:
        out = not low <= _factor(total(log_X)) <= high
        return np.full(log_X.shape, 0.0 if out else 1.0), np.full(log_X.shape, out)

    return weigh


def weighted(
    samples: Sequence[Sample], weigh: Weigh, *, term: str = "pg", normalise: bool = False
) -> list[Sample]:
    """The samples with the stream "mismatch": a weight on tokens that `term` trains, 1 elsewhere.

    normalise: divide by the mean weight of all those tokens, so that the correction changes no step size.
    """
    logs = _log_ratios(samples, term)
    parts = _by_trajectory(samples, logs, lambda log_X: weigh(log_X)[0])
    mean = _mean(np.concatenate(parts)) if parts else 1.0
    scale = mean if normalise and mean > 0 else 1.0
    out = []
    for sample, weight_X in zip(samples, parts):
        weight_T = np.ones(sample.ids_T.shape, np.float32)
        weight_T[_trained(sample, term)] = weight_X / scale
        out.append(replace(sample, logprobs={**sample.logprobs, STREAM: weight_T}))
    return out


def difference_metrics(groups: Sequence[Group]) -> Metrics:
    """mismatch/*: mean and largest difference at the sampled tokens of the segments' streams "old" and "behaviour", and
    the k3 estimate of the KL. Whether an error (checks.py) or a correction follows is not said here."""
    difference_X = differences(segments_of(groups))
    if not len(difference_X):
        return {}
    return {
        "mismatch/abs_mean": float(np.abs(difference_X).mean()),
        "mismatch/abs_max": float(np.abs(difference_X).max()),
        "mismatch/kl": float((_exp(difference_X) - 1 - difference_X).mean()),
    }


def segments_of(groups: Sequence[Group]) -> list[Segment]:
    return [s for group in groups for trajectory in group.trajectories for s in trajectory.segments]


def differences(segments: Sequence[Segment]) -> Float[np.ndarray, "X"]:
    """trainer - sampler of every sampled token."""
    parts = [(s.logprobs["old"] - s.logprobs["behaviour"])[s.scored_T] for s in segments]
    return np.concatenate([np.zeros(0, np.float32), *parts])


def importance_metrics(samples: Sequence[Sample], weigh: Weigh, *, term: str = "pg") -> Metrics:
    """is/*: ratios of the trained tokens, the share that the rule cuts, k3 = mean(rho - 1 - log rho), and the effective
    sample size of the weights (sum w)^2 / (n sum w^2)."""
    logs = _log_ratios(samples, term)
    log_X = np.concatenate(logs) if logs else np.zeros(0)
    if not log_X.size:
        return {}
    rho_X = _exp(log_X)
    weight_X = np.concatenate(_by_trajectory(samples, logs, lambda log_X: weigh(log_X)[0]))
    cut_X = np.concatenate(_by_trajectory(samples, logs, lambda log_X: weigh(log_X)[1]))
    squares = float((weight_X**2).sum())
    return {
        "is/ratio_mean": float(rho_X.mean()),
        "is/ratio_max": float(rho_X.max()),
        "is/ratio_min": float(rho_X.min()),
        "is/trunc_frac": float(cut_X.mean()),
        "is/k3_mismatch": float((rho_X - 1 - log_X).mean()),
        "is/ess": float(weight_X.sum()) ** 2 / (weight_X.size * squares) if squares else 0.0,
    }


def _trained(sample: Sample, term: str) -> Bool[np.ndarray, "T"]:
    mask_T = np.array(sample.include.get(term, np.zeros(sample.ids_T.shape))) != 0
    mask_T[:1] = False
    return mask_T


def _log_ratios(samples: Sequence[Sample], term: str) -> list[Float[np.ndarray, "_"]]:
    """old - behaviour of each sample's trained tokens, bounded so that exp can take it."""
    logs = []
    for index, sample in enumerate(samples):
        mask_T = _trained(sample, term)
        missing = [name for name in ("old", "behaviour") if name not in sample.logprobs]
        if missing and mask_T.any():
            raise DataError(
                f"sample {index} (trajectory {sample.trajectory}): the mismatch of sampler and trainer needs the "
                f'log-prob stream(s) {", ".join(missing)}; give the stage needs=("old",)'
            )
        if not mask_T.any():
            logs.append(np.zeros(0))
            continue
        difference_T = np.subtract(sample.logprobs["old"], sample.logprobs["behaviour"], dtype=np.float64)
        logs.append(np.clip(difference_T[mask_T], -MAX_LOG_RATIO, MAX_LOG_RATIO))
    return logs


def _by_trajectory(
    samples: Sequence[Sample], logs: Sequence[np.ndarray], change: Callable[[np.ndarray], np.ndarray]
) -> list[np.ndarray]:
    """`change` on the tokens of each trajectory together, whatever its segments; one array a sample again."""
    owned: dict[int, list[int]] = {}
    for index, sample in enumerate(samples):
        owned.setdefault(sample.trajectory, []).append(index)
    out: list[np.ndarray] = [np.zeros(0)] * len(samples)
    for members in owned.values():
        whole_X = np.concatenate([logs[index] for index in members])
        if not whole_X.size:
            continue
        edges = np.cumsum([logs[index].size for index in members])[:-1]
        for index, part in zip(members, np.split(change(whole_X), edges)):
            out[index] = part
    return out


def _exp(log_X: Float[np.ndarray, "X"]) -> Float[np.ndarray, "X"]:
    return np.exp(np.clip(log_X, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def _factor(log: float) -> float:
    """exp of a sum or a mean."""
    return math.exp(min(MAX_LOG_RATIO, max(-MAX_LOG_RATIO, log)))


def _mean(value_X: np.ndarray) -> float:
    return float(value_X.mean()) if value_X.size else 0.0


def _check_bounds(low: float, high: float) -> None:
    if not 0 <= low < high:
        raise ConfigError(
            f"mismatch bounds low={low}, high={high} (or cap): expected 0 <= low < high; 0.5 and 2 are usual"
        )
