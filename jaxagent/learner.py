"""Owner of the parameters while a stage trains them: scoring passes and optimiser steps on packed rows.

In: segments to score, samples to learn from. Out: token streams, metrics. Knows loss terms, not algorithms; rollouts,
hand-off and checkpoints are not its job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flax import nnx

from jaxagent.batch.pack import Packed, pack, unpack
from jaxagent.batch.targets import token_mean
from jaxagent.config import PackConfig
from jaxagent.errors import ConfigError
from jaxagent.learn.forward import Execution
from jaxagent.learn.optim import OptimizerSpec, make_optimizer
from jaxagent.learn.state import Partition, TrainState, init_state
from jaxagent.learn.step import HostScores, make_score, make_update
from jaxagent.learn.terms import cross_entropy
from jaxagent.scoring import TokenScores, add_streams
from jaxagent.stage import Stage, Term, Update
from jaxagent.types import Batch, Group, Metrics, Sample, Segment

SCORED = "score"
PEAKS = ("ratio/approx_kl",)  # of one minibatch: a mean over an iteration hides its worst step
SUMMED = (
    "update/steps",
    "update/tokens",
    "skip/nonfinite",
    "skip/no_gradient",
    "skip/outlier",
    "skip/empty_batch",
)


@dataclass(frozen=True)
class Network:
    """Another network of the same tokens."""

    graphdef: nnx.GraphDef
    params: Any


@dataclass(frozen=True)
class Model:
    """Parameters' structure, which of them are trained, and how programs run.

    frozen: parameters that no gradient reaches, by name ("reference": those of the stage's start; "ema": the policy's
            moving average).
    teacher: weights "checkpoint".
    """

    graphdef: nnx.GraphDef
    partition: Partition
    execution: Execution
    frozen: Mapping[str, Any]
    teacher: Network | None = None


class Learner:
    """Trains one stage. `state` is replaced by every optimiser step (the old one is donated)."""

    def __init__(self, model: Model, params: Any, stage: Stage, shape: PackConfig, *, version: int):
        self.model, self.stage, self.shape = model, stage, shape
        optimizer = make_optimizer(optimizer_spec(stage.update, stage.iterations))
        self.state: TrainState = init_state(
            params, optimizer, model.partition, mesh=model.execution.mesh, version=version
        )
        self._update = make_update(
            model.graphdef,
            stage.terms,
            optimizer,
            partition=model.partition,
            execution=model.execution,
            max_skipped=stage.update.max_nan,
            outlier_sigma=stage.update.outlier_sigma,
        )
        self._score = make_score(model.graphdef, model.execution)
        self._score_teacher = make_score(model.teacher.graphdef, model.execution) if model.teacher else None
        self._temperature: np.float32 | None = None

    @property
    def params(self) -> Any:
        return self.state.params

    @property
    def row(self) -> int:
        """Tokens of a training row; nothing longer can be scored."""
        return self.shape.length

    @property
    def version(self) -> int:
        return int(self.state.version)

    def score(self, groups: Sequence[Group], *streams: str) -> list[Group]:
        """The same groups with these token streams on every segment (scoring.py); no two passes where one will do."""
        return add_streams(groups, streams, self.token_scores)

    def score_segments(self, segments: Sequence[Segment], *, weights: str = "current") -> list[np.ndarray]:
        """Log-prob of every sampled token, [T] float32 a segment, 0 elsewhere. Order is kept."""
        return [scores.logprob_T for scores in self.token_scores(segments, weights=weights)]

    def token_scores(self, segments: Sequence[Segment], *, weights: str = "current") -> list[TokenScores]:
        """Log-prob and entropy at every sampled token, and value of the state before it. Order is kept."""
        samples = [_to_score(index, segment) for index, segment in enumerate(segments)]
        packed = self._pack(samples, {SCORED: Term(cross_entropy(), token_mean)})
        if not packed:
            empty = [np.zeros(len(segment.ids_T), np.float32) for segment in segments]
            return [TokenScores(zero_T, zero_T, zero_T, zero_T) for zero_T in empty]
        score, params = self._scorer(weights)
        scores = [score(params, part.batch) for part in packed]
        logprobs = unpack(packed, [part.logprob_BS for part in scores])
        entropies = unpack(packed, [part.entropy_BS for part in scores])
        values, best = (
            [part for part in parts if part is not None]
            for parts in zip(*[(part.value_BS, part.best_BS) for part in scores])
        )
        optional = [unpack(packed, found) if found else [None] * len(segments) for found in (values, best)]
        return [TokenScores(*parts) for parts in zip(logprobs, entropies, *optional, strict=True)]

    def at(self, iteration: int) -> None:
        """From now on log-probs are those of the distribution that this iteration samples from."""
        if self.stage.temperature is not None:
            self._temperature = np.float32(self.stage.temperature(iteration))

    def update(self, samples: Sequence[Sample], *, seed: Sequence[int]) -> Metrics:
        """All epochs and minibatches of one iteration. `seed` fixes the order of trajectories."""
        taken: list[Metrics] = []
        for epoch in range(self.stage.update.epochs):
            for minibatch in minibatches(samples, self.stage.update.minibatch, seed=(*seed, epoch)):
                batches = [part.batch for part in self._pack(minibatch, self.stage.terms)]
                self.state, metrics = self._update(self.state, batches)
                taken.append(metrics)
                if self._drifted(metrics, minibatch):
                    return {**summary(taken), "update/kl_stopped": 1.0}
        return summary(taken)

    def _drifted(self, metrics: Metrics, minibatch: Sequence[Sample]) -> bool:
        """Whether the policy has moved further from the sampling policy than the stage allows in an iteration."""
        trajectories = len({sample.trajectory for sample in minibatch})
        moved = abs(metrics.get("ratio/log_total", 0.0)) / max(trajectories, 1)
        return 0 < self.stage.update.kl_stop < moved

    def _pack(self, samples: Sequence[Sample], terms: Mapping[str, Term]) -> list[Packed]:
        """Rows are split over devices: their number is rounded up to a multiple, which changes no result."""
        shape, shards = self.shape, self.model.execution.row_shards
        rows = -(-shape.rows // shards) * shards
        packed = pack(samples, terms, rows=rows, length=shape.length, scored=shape.slots)
        if self._temperature is None:
            return packed
        return [replace(part, batch=replace(part.batch, temperature=self._temperature)) for part in packed]

    def _scorer(self, name: str) -> tuple[Callable[[Any, Batch], HostScores], Any]:
        """(scoring pass, parameters) of named weights."""
        if name == "checkpoint" and self.model.teacher is not None and self._score_teacher is not None:
            return self._score_teacher, self.model.teacher.params
        return self._score, self.weights(name)

    def weights(self, name: str) -> Any:
        """The policy's parameters ("current"), or others of the same shapes that the stage keeps."""
        if name == "current":
            return self.state.params
        if name not in self.model.frozen:
            raise ConfigError(
                f"weights {name!r} are not kept in this run; kept: current, {', '.join(self.model.frozen)}"
            )
        return self.model.frozen[name]


def temperature(stage: Stage) -> float:
    """Log-probs are those of the distribution that a stage's rollouts sample from; of demonstrations, plain ones."""
    return stage.sampling.temperature if stage.sampling is not None else 1.0


def optimizer_spec(update: Update, iterations: int) -> OptimizerSpec:
    """The optimiser of a stage; a decay lasts for the stage, so it needs `update.steps_per_iteration`."""
    return OptimizerSpec(
        learning_rate=update.learning_rate,
        name=update.optimizer,
        schedule=update.schedule,
        warmup=update.warmup_steps,
        total_steps=iterations * update.steps_per_iteration,
        weight_decay=update.weight_decay,
        betas=update.betas,
        max_grad_norm=update.max_grad_norm,
        adam_learning_rate=update.adam_learning_rate,
        critic_learning_rate=update.critic_learning_rate,
    )


def minibatches(samples: Sequence[Sample], size: int, *, seed: Sequence[int]) -> list[list[Sample]]:
    """Shuffle trajectories (whatever their group) and cut into minibatches of `size`; 0 is one of all.

    Segments of a trajectory stay together. The last minibatch may be smaller; none is empty.
    """
    owners = list(dict.fromkeys(sample.trajectory for sample in samples))
    order = (
        [owners[i] for i in np.random.default_rng(list(seed)).permutation(len(owners))] if size else owners
    )
    by_owner: dict[int, list[Sample]] = {}
    for sample in samples:
        by_owner.setdefault(sample.trajectory, []).append(sample)
    size = size or len(order)
    return [
        [sample for owner in order[start : start + size] for sample in by_owner[owner]]
        for start in range(0, len(order), max(size, 1))
    ]


def summary(taken: Sequence[Metrics]) -> Metrics:
    """Metrics of an iteration from its optimiser steps': counts add up, maxima stay maxima, the rest is a mean. Of
    `PEAKS` the largest is given too, as …_max."""
    if not taken:
        return {"update/steps": 0.0, "skip/empty_batch": 1.0}

    def reduce_(name: str, values: list[float]) -> float:
        if name in SUMMED:
            return float(sum(values))
        return float(max(values)) if name.endswith("max") else float(np.mean(values))

    names = dict.fromkeys(name for metrics in taken for name in metrics)
    found = {name: [metrics[name] for metrics in taken if name in metrics] for name in names}
    peaks = {f"{name}_max": max(values) for name, values in found.items() if name.endswith(PEAKS)}
    return {name: reduce_(name, values) for name, values in found.items()} | peaks


def _to_score(index: int, segment: Segment) -> Sample:
    mask_T = segment.mask_T.astype(np.float32)
    mask_T[:1] = 0
    return Sample(
        trajectory=index,
        ids_T=segment.ids_T,
        step_T=segment.step_T,
        advantage_T=np.zeros(len(mask_T), np.float32),
        include={SCORED: mask_T},
        logprobs={},
    )
