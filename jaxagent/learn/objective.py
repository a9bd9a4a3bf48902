"""What an update minimises:

    sum over terms of  coef * sum(weight * loss) / count

Each term's weights and global count come from the batch, so a micro-batch has its share of the minibatch's loss, and
nothing is ever divided by the number of micro-batches, rows or devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxagent.learn import sums as metric
from jaxagent.learn.forward import DeviceBatch
from jaxagent.learn.loss import Scores, Streams
from jaxagent.learn.sums import Entry, Sum, Sums
from jaxagent.stage import Term


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
