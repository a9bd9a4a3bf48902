"""From credited trajectories to token-level training data, and every way to average a loss over tokens.

A term's loss is sum(weight * loss) / count over the whole minibatch. `include` says which tokens take part
(0 keeps one out); an aggregation turns it into weights and the count:

    trajectories   [1, 3] and [2, 2, 2, 6] (losses of the included tokens)
    token_mean 2.667   seq_mean_token_mean 2.5   seq_mean_token_sum 8
    fixed_len_sum(8) 1   verl_sum_norm(8) 2

Sequences are trajectories, never segments, and a trajectory without an included token counts nowhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from jaxagent.errors import ConfigError
from jaxagent.stage import Aggregate
from jaxagent.types import Credited, Sample, Segment, Trajectory

Weights = tuple[list[np.ndarray], float]
TokenWeight = Callable[[Trajectory, Segment], np.ndarray]


# --- samples -------------------------------------------------------------------------------------


def policy_samples(
    credited: Sequence[Credited],
    *,
    terms: Sequence[str] = ("pg",),
    teacher_terms: Sequence[str] = (),
    excluded: Callable[[Trajectory], bool] | None = None,
) -> list[Sample]:
    """Sampled tokens with the advantage of their step; one sample a segment.

    teacher_terms: terms that read the "teacher" stream; they include a segment only where it has one.
    excluded: trajectories whose tokens are all kept out, beside the masked ones (their return has already been in the
              baseline).
    """
    samples = []
    for index, item in enumerate(credited):
        drop = item.trajectory.masked or (excluded is not None and excluded(item.trajectory))
        for number, segment in enumerate(item.trajectory.segments):
            mask_T = segment.scored_T & (not drop)
            include = {name: mask_T.astype(np.float32) for name in terms}
            taught = "teacher" in segment.logprobs
            include |= {name: (mask_T & taught).astype(np.float32) for name in teacher_terms}
            samples.append(_sample(index, item, number, mask_T, include))
    return samples


def imitation_samples(
    credited: Sequence[Credited],
    *,
    term: str = "ce",
    mask_errors: bool = False,
    token_weight: TokenWeight | None = None,
) -> list[Sample]:
    """Policy tokens of demonstrations for cross-entropy.

    mask_errors: tokens of steps that did not execute (exec_status is neither OK nor NONE) get weight 0; the
    step stays in the context and its correction keeps weight 1.   token_weight: (trajectory, segment) ->
    factor [T], e.g. 4 on literals.   Samples without a trained token are left out.
    """
    samples = []
    for index, item in enumerate(credited):
        for number, segment in enumerate(item.trajectory.segments):
            mask_T = segment.scored_T
            weight_T = mask_T.astype(np.float32)
            if mask_errors:
                failed_K = np.array([step.exec_status.failed for step in item.trajectory.steps], bool)
                weight_T *= ~_per_token(failed_K, segment.step_T)
            if token_weight is not None:
                weight_T *= np.asarray(token_weight(item.trajectory, segment), np.float32)
            if weight_T.any():
                samples.append(_sample(index, item, number, mask_T, {term: weight_T}))
    return samples


def _per_token(value_K: np.ndarray, step_T: np.ndarray) -> np.ndarray:
    """Each token's step value; 0 outside steps. -1 never indexes the array."""
    if not len(value_K):
        return np.zeros(step_T.shape, value_K.dtype)
    return np.where(step_T >= 0, value_K[np.maximum(step_T, 0)], np.zeros((), value_K.dtype))


def _sample(index: int, item: Credited, number: int, mask_T: np.ndarray, include: dict) -> Sample:
    """Segment `number` of a credited trajectory."""
    segment = item.trajectory.segments[number]
    per_step_K = np.asarray(item.advantage_K, np.float32)
    advantage_T = item.advantage_T[number] if item.advantage_T else _per_token(per_step_K, segment.step_T)
    return Sample(
        trajectory=index,
        ids_T=segment.ids_T,
        step_T=segment.step_T,
        advantage_T=np.where(mask_T, advantage_T, np.float32(0)),
        include=include,
        logprobs=segment.logprobs,
    )


# --- aggregations: (samples of one minibatch, term) -> (weight [T] per sample, count) ---------------


def token_mean(samples: Sequence[Sample], term: str) -> Weights:
    """sum(w loss) / sum(w) over all tokens (DAPO; supervised training). Tokens of advantage 0 count; a filter that
    drops their trajectories (credit/filters.py) keeps them from diluting the mean."""
    weights = _included(samples, term)
    return weights, float(sum(w.sum(dtype=np.float64) for w in weights))


def seq_mean_token_mean(samples: Sequence[Sample], term: str) -> Weights:
    """Mean over trajectories of the trajectory's token mean (GRPO, GVPO, LOOP). Also the weights of one
    trajectory-level ratio: the tokens of a trajectory share 1."""
    weights = _included(samples, term)
    total = _totals(samples, weights)
    return [w / np.float32(total.get(s.trajectory, 1.0)) for s, w in zip(samples, weights)], float(len(total))


def seq_mean_token_sum(samples: Sequence[Sample], term: str) -> Weights:
    """Mean over trajectories of the trajectory's token sum."""
    weights = _included(samples, term)
    return weights, float(len(_totals(samples, weights)))


def turn_mean(samples: Sequence[Sample], term: str) -> Weights:
    """Mean over trajectories of the mean over turns of the turn's token mean: for turn-level ratios."""
    weights, _ = step_mean(samples, term)
    count = Counter(trajectory for trajectory, _ in _turn_totals(samples, weights))
    return [w / np.float32(count[s.trajectory] or 1) for s, w in zip(samples, weights)], float(len(count))


def step_mean(samples: Sequence[Sample], term: str) -> Weights:
    """Mean over all turns of the turn's token mean: every turn is a sample of its own (GiGPO's code)."""
    weights = _included(samples, term)
    turns = _turn_totals(samples, weights)
    out = []
    for sample, w in zip(samples, weights):
        divisor_T = np.ones(w.shape, np.float64)
        for step in np.unique(sample.step_T[w != 0]):
            divisor_T[sample.step_T == step] = turns[sample.trajectory, int(step)]
        out.append((w / divisor_T).astype(np.float32))
    return out, float(len(turns))


def fixed_len_sum(length: int) -> Aggregate:
    """sum(w loss) / (trajectories * length) (Dr. GRPO)."""
    _positive("length", length)

    def aggregate(samples: Sequence[Sample], term: str) -> Weights:
        weights, trajectories = seq_mean_token_sum(samples, term)
        return weights, trajectories * length

    return aggregate


def verl_sum_norm(length: int) -> Aggregate:
    """sum(w loss) / length, not divided by the number of trajectories."""
    _positive("length", length)
    return lambda samples, term: (_included(samples, term), float(length))


def constant_count(aggregate: Aggregate, trajectories: int) -> Aggregate:
    """`aggregate` with the number of trajectories replaced by a constant, whatever filtering left (LOOP: the
    nominal minibatch size)."""
    _positive("trajectories", trajectories)

    def constant(samples: Sequence[Sample], term: str) -> Weights:
        weights, count = aggregate(samples, term)
        present = len(_totals(samples, _included(samples, term)))
        return weights, count * trajectories / present if present else 0.0

    return constant


def _included(samples: Sequence[Sample], term: str) -> list[Float[np.ndarray, "T"]]:
    """The term's inclusion per sample as float32, token 0 excluded; zeros where a sample lacks the term."""
    out = []
    for sample in samples:
        w = np.array(sample.include.get(term, np.zeros(sample.ids_T.shape)), np.float32)
        if w.shape != sample.ids_T.shape or (w < 0).any() or not np.isfinite(w).all():
            raise ConfigError(
                f"include[{term!r}] must hold one finite weight >= 0 per token; got shape {w.shape} for "
                f"{sample.ids_T.shape[0]} tokens, minimum {w.min(initial=0)}"
            )
        w[:1] = 0
        out.append(w)
    return out


def _turn_totals(samples: Sequence[Sample], weights: Sequence[np.ndarray]) -> dict[tuple[int, int], float]:
    """Summed token weight of each (trajectory, turn) that has any; a turn may lie in several segments."""
    turns: dict[tuple[int, int], float] = {}
    for sample, w in zip(samples, weights):
        for step in np.unique(sample.step_T[w != 0]):
            key = (sample.trajectory, int(step))
            turns[key] = turns.get(key, 0.0) + float(w[sample.step_T == step].sum(dtype=np.float64))
    return turns


def _totals(samples: Sequence[Sample], weights: Sequence[np.ndarray]) -> dict[int, float]:
    """Total weight per trajectory, over its segments; trajectories without any are absent."""
    total: dict[int, float] = {}
    for sample, w in zip(samples, weights):
        if w.any():
            total[sample.trajectory] = total.get(sample.trajectory, 0.0) + float(w.sum(dtype=np.float64))
    return total


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name}={value} must be at least 1")
