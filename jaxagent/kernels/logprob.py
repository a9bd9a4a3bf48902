"""Log-probability, entropy and logsumexp of chosen tokens, straight from hidden states and the LM head.

In: hidden states of the scored tokens [X, D], the head matrix [V, D], the token that each row scores [X].
Out: three float32 [X] arrays, differentiable with respect to hidden states and head, and a constant one: the
log-probability of whatever token is likeliest. The [X, V] logits never exist, forward or backward: both passes
walk over tiles of `Tiles.tokens` x `Tiles.vocab` logits and the backward pass recomputes them (4 products of
2*X*D*V FLOPs in all). Not its job: losses, masks of terms, the gather of scored positions.

Formulas, with l_v = <h, W_v> / temperature, p = softmax(l):

    logsumexp = log sum_v exp(l_v)         d logsumexp / d l_v = p_v
    logprob   = l_target - logsumexp       d logprob   / d l_v = 1[v = target] - p_v
    entropy   = logsumexp - sum_v p_v l_v  d entropy   / d l_v = -p_v (l_v - logsumexp + entropy)

Why tiles on a CPU: a tile of logits stays in cache, which makes the head-shaped products run at twice the
rate that one [X, V] product reaches. On an accelerator one tile spans the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from jaxagent.mesh.rules import platform


class LogProb(NamedTuple):
    """float32. Rows outside `keep_X` are 0. best_X: of the likeliest token, whichever it is; without a gradient."""

    logprob_X: Float[Array, " X"]
    entropy_X: Float[Array, " X"]
    logsumexp_X: Float[Array, " X"]
    best_X: Float[Array, " X"]


@dataclass(frozen=True)
class Tiles:
    """How many logits exist at a time: `tokens` x `vocab`; vocab 0 is the whole vocabulary in one tile."""

    tokens: int
    vocab: int = 0


CPU_TILES = Tiles(tokens=256, vocab=1024)  # 1 MiB of logits: measured best on a 2-core EPYC, flat around it
ACCELERATOR_TILES = Tiles(tokens=1024)


@dataclass(frozen=True)
class HeadShards:
    """Mesh axes: rows X over `rows`, the head's vocabulary over `vocab` (None: every device holds it)."""

    mesh: Mesh
    rows: tuple[str, ...]
    vocab: str | None = None


@dataclass(frozen=True)
class _Plan:
    temperature: float | None  # None: traced
    tiles: Tiles
    shards: HeadShards | None
    train_head: bool


def token_logprobs(
    hidden_XD: Float[Array, "X D"],
    head_VD: Float[Array, "V D"],
    target_X: Int[Array, " X"],
    *,
    temperature: float | Float[Array, ""] = 1.0,
    keep_X: Bool[Array, " X"] | None = None,
    tiles: Tiles | None = None,
    shards: HeadShards | None = None,
    train_head: bool = True,
) -> LogProb:
    """Score `target_X` under softmax(hidden @ head.T / temperature).

    keep_X: rows that matter; the others cost nothing (they are sorted behind, and whole tiles of them are
    never computed), come out as 0 and get no gradient. train_head=False spares the product for the head's
    gradient, which is then 0. Products run in the hidden states' dtype and accumulate in float32.
    temperature: a number is compiled in; an array may change from call to call, and has no gradient.
    """
    fixed = not isinstance(temperature, jax.Array)
    if fixed and temperature <= 0:
        raise ValueError(f"temperature={temperature}: log-probs need a temperature above 0")
    if tiles is None:
        tiles = CPU_TILES if platform() == "cpu" else ACCELERATOR_TILES
    keep_X = jnp.ones(target_X.shape, bool) if keep_X is None else keep_X
    plan = _Plan(float(temperature) if fixed else None, tiles, shards, train_head)
    heat = jnp.asarray(temperature, jnp.float32)
    scores: Any = _scores(plan, hidden_XD, head_VD, target_X, keep_X, heat)
    return LogProb(*scores)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scores(plan: _Plan, hidden_XD, head_VD, target_X, keep_X, heat):
    return _scores_fwd(plan, hidden_XD, head_VD, target_X, keep_X, heat)[0]


def _scores_fwd(plan: _Plan, hidden_XD, head_VD, target_X, keep_X, heat):
    rows, head = _specs(plan.shards)
    specs = (P(*rows, None), head, rows, rows, P())
    run = _on_mesh(plan.shards, partial(_forward, plan), specs, (rows,) * 4)
    out = run(hidden_XD, head_VD, target_X, keep_X, heat)
    return out, (hidden_XD, head_VD, target_X, keep_X, heat, out[1], out[2])


def _scores_bwd(plan: _Plan, saved, cotangents):
    rows, head = _specs(plan.shards)
    specs = (P(*rows, None), head, rows, rows, P(), *[rows] * 5)
    run = _on_mesh(plan.shards, partial(_backward, plan), specs, (P(*rows, None), head))
    d_hidden, d_head = run(*saved, *cotangents[:3])  # what is likeliest has no gradient
    return d_hidden, d_head, None, None, None


_scores.defvjp(_scores_fwd, _scores_bwd)


def _specs(shards: HeadShards | None) -> tuple[P, P]:
    return (P(), P()) if shards is None else (P(shards.rows), P(shards.vocab, None))


def _on_mesh(shards: HeadShards | None, fn: Callable, in_specs, out_specs) -> Callable:
    """Run `fn` on every device's own rows and vocabulary shard; the collectives inside are written out."""
    if shards is None:
        return fn
    return jax.shard_map(fn, mesh=shards.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _forward(plan: _Plan, hidden_XD, head_VD, target_X, keep_X, heat):
    """One walk over the vocabulary per token tile: running maximum m, Z = sum e^(l-m), M = sum l e^(l-m)."""
    heat = plan.temperature or heat
    order_X, used = _kept_first(keep_X)
    C = min(plan.tiles.tokens, target_X.shape[0])
    local_X, owned_X = _local_targets(plan, head_VD, target_X)

    def token_tile(i, outs):
        index_C, valid_C = _tile(order_X, i, C, keep_X)
        hidden_CD = hidden_XD[index_C]

        def vocab_tile(carry, head_bD, start):
            del start
            m_C, z_C, s_C = carry
            logit_bC = _logits(heat, head_bD, hidden_CD)
            top_C = jnp.maximum(m_C, logit_bC.max(axis=0))
            e_bC = jnp.exp(logit_bC - top_C[None])
            rescale_C = jnp.exp(m_C - top_C)
            s_C = s_C * rescale_C + (e_bC * logit_bC).sum(axis=0)
            return top_C, z_C * rescale_C + e_bC.sum(axis=0), s_C

        start = (jnp.full(C, -jnp.inf, jnp.float32), jnp.zeros(C, jnp.float32), jnp.zeros(C, jnp.float32))
        m_C, z_C, s_C = _over_vocab(plan.tiles.vocab, head_VD, start, vocab_tile)
        target_CD = head_VD[local_X[index_C]].astype(hidden_CD.dtype)
        product_CD = hidden_CD.astype(jnp.float32) * target_CD.astype(jnp.float32)
        logit_C = jnp.where(owned_X[index_C], product_CD.sum(axis=-1) / heat, 0.0)
        if plan.shards is not None and plan.shards.vocab is not None:
            axis = plan.shards.vocab
            top_C = lax.pmax(m_C, axis)
            z_C, s_C = lax.psum((z_C * jnp.exp(m_C - top_C), s_C * jnp.exp(m_C - top_C)), axis)
            logit_C, m_C = lax.psum(logit_C, axis), top_C
        logsumexp_C = m_C + jnp.log(z_C)
        values = (logit_C - logsumexp_C, logsumexp_C - s_C / z_C, logsumexp_C, m_C - logsumexp_C)
        # A ragged last tile re-visits rows; writing only the valid ones leaves the others as they were.
        where_C = jnp.where(valid_C, index_C, target_X.shape[0])
        return tuple(out.at[where_C].set(value, mode="drop") for out, value in zip(outs, values))

    zeros = tuple(jnp.zeros(target_X.shape, jnp.float32) for _ in range(4))
    return lax.fori_loop(0, (used + C - 1) // C, token_tile, zeros)


def _backward(
    plan: _Plan,
    hidden_XD,
    head_VD,
    target_X,
    keep_X,
    heat,
    entropy_X,
    logsumexp_X,
    g_logprob,
    g_entropy,
    g_lse,
):
    """Recompute each tile of logits and turn it into d loss / d logits in place; two products follow."""
    heat = plan.temperature or heat
    order_X, used = _kept_first(keep_X)
    C = min(plan.tiles.tokens, target_X.shape[0])
    local_X, owned_X = _local_targets(plan, head_VD, target_X)
    # d loss / d l_v = p_v (a + b l_v) + g_logprob 1[v = target]
    b_X = -g_entropy
    a_X = g_lse - g_logprob + g_entropy * (logsumexp_X - entropy_X)

    def token_tile(i, carry):
        d_head_VD, d_hidden_XD = carry
        index_C, valid_C = _tile(order_X, i, C, keep_X)
        hidden_CD = hidden_XD[index_C]
        a_C, b_C, g_C = (jnp.where(valid_C, v[index_C], 0.0) / heat for v in (a_X, b_X, g_logprob))
        lse_C = logsumexp_X[index_C]

        def vocab_tile(carry, head_bD, start):
            d_head_VD, d_hidden_CD = carry
            logit_bC = _logits(heat, head_bD, hidden_CD)
            d_bC = jnp.exp(logit_bC - lse_C[None]) * (a_C[None] + b_C[None] * logit_bC)
            d_bC = d_bC.astype(hidden_CD.dtype)
            d_hidden_CD = d_hidden_CD + _product(d_bC, head_bD.astype(hidden_CD.dtype), 0, 0)
            if plan.train_head:
                old_bD = lax.dynamic_slice_in_dim(d_head_VD, start, head_bD.shape[0])
                new_bD = old_bD + _product(d_bC, hidden_CD, 1, 0)
                d_head_VD = lax.dynamic_update_slice_in_dim(d_head_VD, new_bD, start, 0)
            return d_head_VD, d_hidden_CD

        carry = (d_head_VD, jnp.zeros(hidden_CD.shape, jnp.float32))
        d_head_VD, d_hidden_CD = _over_vocab(plan.tiles.vocab, head_VD, carry, vocab_tile)
        g_C1 = jnp.where(owned_X[index_C], g_C, 0.0)[:, None]
        target_C = local_X[index_C]
        d_hidden_CD = d_hidden_CD + g_C1 * head_VD[target_C].astype(jnp.float32)
        if plan.train_head:
            d_head_VD = d_head_VD.at[target_C].add(g_C1 * hidden_CD.astype(jnp.float32))
        where_C = jnp.where(valid_C, index_C, target_X.shape[0])
        return d_head_VD, d_hidden_XD.at[where_C].set(d_hidden_CD, mode="drop")

    empty = (jnp.zeros(head_VD.shape, jnp.float32), jnp.zeros(hidden_XD.shape, jnp.float32))
    d_head_VD, d_hidden_XD = lax.fori_loop(0, (used + C - 1) // C, token_tile, empty)
    if plan.shards is not None:
        d_head_VD = lax.psum(d_head_VD, plan.shards.rows)
        if plan.shards.vocab is not None:
            d_hidden_XD = lax.psum(d_hidden_XD, plan.shards.vocab)
    return d_hidden_XD.astype(hidden_XD.dtype), d_head_VD.astype(head_VD.dtype)


def _product(a, b, a_axis: int, b_axis: int):
    return lax.dot_general(a, b, (((a_axis,), (b_axis,)), ((), ())), preferred_element_type=jnp.float32)


def _logits(heat, head_bD, hidden_CD):
    """Vocabulary-major, so that the reductions over the vocabulary run along the outer axis (vectorised)."""
    logit_bC = _product(head_bD.astype(hidden_CD.dtype), hidden_CD, 1, 1)
    return logit_bC if isinstance(heat, float) and heat == 1.0 else logit_bC / heat


def _over_vocab(size: int, head_VD, carry, body: Callable):
    """Fold `body(carry, head_bD, start)` over vocabulary tiles."""
    vocab = head_VD.shape[0]
    size = _tile_size(vocab, size)
    whole = vocab // size
    if whole == 1:
        carry = body(carry, head_VD[:size], 0)
    else:
        slice_ = partial(lax.dynamic_slice_in_dim, head_VD, slice_size=size)
        carry = lax.fori_loop(0, whole, lambda i, c: body(c, slice_(start_index=i * size), i * size), carry)
    if vocab % size:  # traced, and compiled, once more
        carry = body(carry, head_VD[whole * size :], whole * size)
    return carry


def _tile_size(vocab: int, wanted: int) -> int:
    """`wanted`, or the divisor of `vocab` nearest to it within a factor of 2, which spares a ragged last tile
    (Qwen: 151,936 = 128 x 1,187)."""
    if not wanted or wanted >= vocab:
        return vocab
    near = [size for size in range(wanted // 2 + 1, 2 * wanted) if vocab % size == 0]
    return min(near, key=lambda size: abs(size - wanted)) if near else wanted


def _kept_first(keep_X):
    return jnp.argsort(~keep_X, stable=True), keep_X.sum()


def _tile(order_X, i, size: int, keep_X):
    """Row indices of token tile `i` and which of them count; the last tile is moved back inside the array."""
    start = jnp.minimum(i * size, order_X.shape[0] - size)
    index_C = lax.dynamic_slice_in_dim(order_X, start, size)
    return index_C, keep_X[index_C] & (start + jnp.arange(size) >= i * size)


def _local_targets(plan: _Plan, head_VD, target_X):
    """Row of this device's head shard for each target, and whether the shard owns it."""
    if plan.shards is None or plan.shards.vocab is None:
        return target_X, jnp.ones(target_X.shape, bool)
    local_X = target_X - lax.axis_index(plan.shards.vocab) * head_VD.shape[0]
    owned_X = (local_X >= 0) & (local_X < head_VD.shape[0])
    return jnp.clip(local_X, 0, head_VD.shape[0] - 1), owned_X
