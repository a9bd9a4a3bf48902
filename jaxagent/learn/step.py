"""The optimiser step and the scoring pass.

`make_update` turns loss terms into one function (state, micro-batches) -> (state, metrics). The loss is

    sum over terms of  coef * sum(weight * loss) / count

with each term's weights and global count taken from the batch: splitting a minibatch into micro-batches, rows
or devices changes nothing, and nothing is ever divided by the number of micro-batches. One micro-batch is one
compiled program; several share an accumulating program and an applying one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from jaxagent.errors import DivergenceError
from jaxagent.learn import sums as metric
from jaxagent.learn.forward import DeviceBatch, Execution, place, scores_of
from jaxagent.learn.loss import Scores, Streams
from jaxagent.learn.outliers import norm_limit, with_norm
from jaxagent.learn.state import Params, Partition, TrainState, path_name, train_all
from jaxagent.learn.sums import Entry, Max, Sum, Sums
from jaxagent.stage import Term
from jaxagent.types import Batch, Metrics


class HostScores(NamedTuple):
    """`Scores` on the host."""

    logprob_BS: Float[np.ndarray, "B S"]
    entropy_BS: Float[np.ndarray, "B S"]
    value_BS: Float[np.ndarray, "B S"] | None = None
    best_BS: Float[np.ndarray, "B S"] | None = None


EMPTY: Metrics = {"update/steps": 0.0, "skip/empty_batch": 1.0, "skip/nonfinite": 0.0}


def make_score(graphdef: Any, execution: Execution | None = None) -> Callable[[Params, Batch], HostScores]:
    """(params, batch) -> numpy [B, S]: old, reference or teacher log-probs, values; no gradient.

    Every used slot is scored, whatever its weight.
    """
    execution = execution or Execution()

    @jax.jit
    def run(params: Params, batch: DeviceBatch) -> Scores:
        keep_BS = batch["column_BS"] > 0
        return scores_of(graphdef, params, batch, keep_BS, execution=execution, train_head=False)

    def score(params: Params, batch: Batch) -> HostScores:
        with execution.ambient():
            return HostScores(*jax.tree.map(np.asarray, run(params, place(batch, execution))))

    return score


def total_loss(scores: Scores, batch: DeviceBatch, terms: Mapping[str, Term]) -> tuple[jax.Array, Sums]:
    """Scalar loss of a micro-batch (its share of the minibatch's) and metric sums."""
    loss = jnp.zeros((), jnp.float32)
    sums: dict[str, Entry] = {}
    used_BS = kept(batch, terms)
    for name, term in terms.items():
        weight_BS, count = batch["weight"][name], batch["count"][name]
        streams = replace(streams_of(batch), weight_BS=weight_BS)
        loss_BS, term_sums = term.loss(scores, streams)
        # where, not a product: a loss at weight 0 may be anything, and 0 * inf is nan
        weighted = jnp.where(weight_BS != 0, weight_BS * loss_BS, 0.0).sum() / jnp.maximum(count, 1e-30)
        weighted = jnp.where(count > 0, weighted, 0.0)
        coef = batch["coef"][name] if callable(term.coef) else term.coef
        loss = loss + coef * weighted
        sums[f"loss/{name}"] = Sum(weighted)
        sums |= {f"{name}/{key}" if key in sums else key: value for key, value in term_sums.items()}
    if "old" in batch["logprobs"]:
        log_ratio_BS = scores.logprob_BS - batch["logprobs"]["old"]
        sums["ratio/log_total"] = Sum(jnp.where(used_BS, log_ratio_BS, 0.0).sum())
    sums["policy/entropy"] = metric.mean_of(scores.entropy_BS, used_BS)
    sums["policy/logprob"] = metric.mean_of(scores.logprob_BS, used_BS)
    sums["update/tokens"] = Sum(used_BS.sum().astype(jnp.float32))
    sums["loss/total"] = Sum(loss)
    return loss, jax.lax.stop_gradient(sums)


def streams_of(batch: DeviceBatch) -> Streams:
    """The constants that all terms share; the weight is each term's own."""
    return Streams(
        advantage_BS=batch["advantage_BS"],
        turn_BS=batch["turn_BS"],
        trajectory_BS=batch["trajectory_BS"],
        weight_BS=jnp.zeros_like(batch["advantage_BS"]),
        logprobs=batch["logprobs"],
    )


def kept(batch: DeviceBatch, terms: Mapping[str, Term]) -> jax.Array:
    return jnp.any(jnp.stack([batch["weight"][name] != 0 for name in terms]), axis=0)


class Update:
    """(state, micro-batches of one minibatch) -> (state, metrics). Owns the compiled programs.

    The state is donated: use only the returned one. Micro-batches without any weight are not run; if all are,
    or if the gradient is exactly zero (every advantage is 0), there is no optimiser step: no weight decay, no
    old momentum, and the schedule stands still. A micro-batch whose loss or gradient is not finite is left
    out and counted; more than `max_skipped` of them in a run raise DivergenceError. With `outlier_sigma` a step whose
    gradient norm is an outlier (outliers.py) is skipped and counted too.
    """

    def __init__(
        self,
        graphdef: Any,
        terms: Mapping[str, Term],
        optimizer: optax.GradientTransformation,
        *,
        partition: Partition,
        execution: Execution,
        max_skipped: int,
        outlier_sigma: float,
    ):
        self.terms, self.execution, self.max_skipped = dict(terms), execution, max_skipped
        self.outlier_sigma = outlier_sigma
        self._graphdef, self._optimizer, self._partition = graphdef, optimizer, partition
        self._programs: dict[str, Callable] = {}

    def __call__(self, state: TrainState, batches: Sequence[Batch]) -> tuple[TrainState, Metrics]:
        work = [batch for batch in batches if any(batch.weight[name].any() for name in self.terms)]
        if not work:
            return state, dict(EMPTY)
        with self.execution.ambient():
            if not self._programs:
                self._programs = self._build(state)
            if len(work) == 1:
                state, sums = self._programs["single"](state, self._place(work[0], state))
            else:
                state, sums = self._accumulated(state, work)
        metrics = metric.finish(sums)
        if int(state.skipped) > self.max_skipped:
            raise DivergenceError(
                f"{int(state.skipped)} micro-batches had a loss or gradient that is not finite "
                f"(limit {self.max_skipped}); lower the learning rate or look at the last batches' metrics"
            )
        return state, {**metrics, "skip/empty_batch": 0.0}

    def _accumulated(self, state: TrainState, work: Sequence[Batch]) -> tuple[TrainState, Sums]:
        total = None
        for batch in work:
            placed = self._place(batch, state)
            if total is None:
                total = self._programs["zeros"](state.params, placed)
            total = self._programs["accumulate"](state.params, total, placed)
        return self._programs["apply"](state, total)

    def _place(self, batch: Batch, state: TrainState) -> DeviceBatch:
        needed = {stream for term in self.terms.values() for stream in getattr(term.loss, "needs", ())}
        streams = sorted(needed | ({"old"} & batch.logprobs.keys()))
        placed = place(batch, self.execution, terms=sorted(self.terms), streams=streams)
        moving = {name: term.coef for name, term in self.terms.items() if callable(term.coef)}
        if not moving:
            return placed
        step = int(state.step)
        return {**placed, "coef": {name: jnp.float32(coef(step)) for name, coef in moving.items()}}

    def _build(self, state: TrainState) -> dict[str, Callable]:
        # Pinned layouts: a compiler that chose another one for its output would compile the next call anew.
        pinned = accumulated = None
        if self.execution.mesh is not None:
            pinned = (jax.tree.map(lambda leaf: leaf.sharding, state), None)
            layout = dict(jax.tree_util.tree_leaves_with_path(pinned[0].params))
            trained = jax.eval_shape(lambda params: self._partition.split(params)[0], state.params)
            accumulated = (jax.tree_util.tree_map_with_path(lambda path, _: layout[path], trained), None)
        jit = jax.jit
        return {
            "single": jit(self._single, donate_argnums=0, out_shardings=pinned),
            "accumulate": jit(self._accumulate, donate_argnums=1, out_shardings=accumulated),
            "apply": jit(self._apply, donate_argnums=0, out_shardings=pinned),
            "zeros": jit(self._zeros, out_shardings=accumulated),
        }

    def _gradient(self, params: Params, batch: DeviceBatch) -> tuple[Params, Sums]:
        """Gradient of the trained part; zero, and counted as skipped, if anything in it is not finite."""
        trained, rest = self._partition.split(params)
        train_head = _head_is_trained(params, trained)

        def loss_of(trained: Params) -> tuple[jax.Array, Sums]:
            params = self._partition.merge(trained, rest)
            scores = scores_of(
                self._graphdef,
                params,
                batch,
                kept(batch, self.terms),
                execution=self.execution,
                train_head=train_head,
            )
            return total_loss(scores, batch, self.terms)

        (loss, sums), grads = jax.value_and_grad(loss_of, has_aux=True)(trained)
        finite = jnp.isfinite(loss) & jnp.isfinite(optax.tree.norm(grads))
        grads, sums = jax.tree.map(lambda x: jnp.where(finite, x, jnp.zeros_like(x)), (grads, sums))
        return grads, {
            **sums,
            "update/good": Sum(finite.astype(jnp.float32)),
            "skip/nonfinite": Sum(1.0 - finite.astype(jnp.float32)),
        }

    def _single(self, state: TrainState, batch: DeviceBatch) -> tuple[TrainState, Sums]:
        return self._apply(state, self._gradient(state.params, batch))

    def _accumulate(
        self, params: Params, total: tuple[Params, Sums], batch: DeviceBatch
    ) -> tuple[Params, Sums]:
        grads, sums = self._gradient(params, batch)
        return jax.tree.map(jnp.add, total[0], grads), metric.add(total[1], sums)

    def _zeros(self, params: Params, batch: DeviceBatch) -> tuple[Params, Sums]:
        shapes = jax.eval_shape(self._gradient, params, batch)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def _apply(self, state: TrainState, total: tuple[Params, Sums]) -> tuple[TrainState, Sums]:
        grads, sums = total
        norm = optax.tree.norm(grads)
        finite = sums["update/good"][0] > 0
        moves = finite & (norm > 0)
        limit = norm_limit(state.norms, self.outlier_sigma) if self.outlier_sigma else jnp.inf
        good = moves & (norm <= limit)
        norms = jnp.where(moves, with_norm(state.norms, jnp.minimum(norm, limit)), state.norms)
        skipped = state.skipped + sums["skip/nonfinite"][0].astype(jnp.int32)
        # cond, not a select on every leaf: a select needs the old and the new state at once.
        state = jax.lax.cond(good, self._step, lambda state, grads: state, state, grads)
        return replace(state, skipped=skipped, norms=norms), {
            **{name: entry for name, entry in sums.items() if name != "update/good"},
            "update/grad_norm": Max(norm),
            "update/steps": Sum(good.astype(jnp.float32)),
            "skip/no_gradient": Sum((finite & ~moves).astype(jnp.float32)),
            "skip/outlier": Sum((moves & ~good).astype(jnp.float32)),
        }

    def _step(self, state: TrainState, grads: Params) -> TrainState:
        trained, rest = self._partition.split(state.params)
        updates, opt_state = self._optimizer.update(grads, state.opt_state, trained)
        return replace(
            state,
            params=self._partition.merge(optax.apply_updates(trained, updates), rest),
            opt_state=opt_state,
            step=state.step + 1,
            version=state.version + 1,
        )


def make_update(
    graphdef: Any,
    terms: Mapping[str, Term],
    optimizer: optax.GradientTransformation,
    *,
    partition: Partition | None = None,
    execution: Execution | None = None,
    max_skipped: int = 20,
    outlier_sigma: float = 0.0,
) -> Update:
    """The update of a stage. graphdef: from nnx.split(model); the state comes from learn.state.init_state."""
    if not terms:
        raise ValueError("an update needs at least one loss term")
    return Update(
        graphdef,
        terms,
        optimizer,
        partition=partition or train_all(),
        execution=execution or Execution(),
        max_skipped=max_skipped,
        outlier_sigma=outlier_sigma,
    )


def _head_is_trained(params: Params, trained: Params) -> bool:
    """Whether the LM head (the embedding where tied) is among the trained leaves."""
    names = {path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)}
    chosen = {path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(trained)}
    return ("head" if "head" in names else "embed") in chosen
