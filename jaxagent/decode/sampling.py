"""Draw one token per row from logits, under a rule and a random stream of its own per row.

In:  logits [V, B] (vocabulary first: the layout in which the head's product is quickest on CPU), a stream of
     random numbers per row, a rule per row. Everything is traced: one executable serves greedy and sampled
     rows with and without filters.
Out: the token and its log-prob under the distribution really drawn from.
Not its job: stop conditions, the head's product.

The draw is an inverse CDF in two levels (a column of the vocabulary, then a token in that column) with two
uniform numbers per token. Gumbel noise needs V of them: at V=151,936 that alone costs more than the head. All
filters keep exactly the tokens at or above one threshold per row, found by bisection over the ordered bit
patterns of float32: exact as a full sort, ties included, at a quarter of its price or less.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

COLUMNS = 128  # divides every vocabulary of the Qwen and Llama families; others are padded with -inf


class Rule(NamedTuple):
    """Sampling rule per row; see types.Sampling. temperature 0 is greedy; top_k 0, top_p 1, min_p 0 are off."""

    temperature_B: Float[Array, "B"]
    top_k_B: Int[Array, "B"]
    top_p_B: Float[Array, "B"]
    min_p_B: Float[Array, "B"]


def stream_keys(name_B5: UInt32[Array, "B 5"]) -> Key[Array, "B"]:
    """Key of each row's message. name: (seed low word, seed high word, task, rollout, step)."""

    def fold(key_B: Key[Array, "B"], word_B: UInt32[Array, "B"]) -> tuple[Key[Array, "B"], None]:
        return jax.vmap(jax.random.fold_in)(key_B, word_B), None

    start_B = jnp.broadcast_to(jax.random.key(0, impl="threefry2x32"), name_B5.shape[:1])
    # A scan, not five calls in a row: each copy of the generator costs 60 ms of compilation.
    return jax.lax.scan(fold, start_B, name_B5.T)[0]


def sample(
    logits_VB: Float[Array, "V B"], stream_B: Key[Array, "B"], index_B: Int[Array, "B"], rule: Rule
) -> tuple[Int[Array, "B"], Float[Array, "B"]]:
    """Token `index_B` of each row's message, and its log-prob (float32).

    Greedy rows return the log-prob under the plain softmax. Draws depend on the row's own logits, stream and
    index only. Ties of a greedy row go to the lowest column (id mod 128).
    """
    greedy_B = rule.temperature_B <= 0
    scale_B = jnp.where(greedy_B, 1.0, 1.0 / jnp.where(greedy_B, 1.0, rule.temperature_B))
    scaled_RCB = _columns(logits_VB.astype(jnp.float32) * scale_B[None])
    top_CB = scaled_RCB.max(axis=0)
    top_B = top_CB.max(axis=0)
    floor_B = _floor(scaled_RCB, top_B, rule, greedy_B)
    kept_RCB = scaled_RCB >= floor_B[None, None]
    mass_CB = jnp.where(kept_RCB, jnp.exp(scaled_RCB - top_B[None, None]), 0.0).sum(axis=0)
    total_B = mass_CB.sum(axis=0)

    uniform_B2 = _uniforms(stream_B, index_B)
    column_B = jnp.where(
        greedy_B, jnp.argmax(top_CB == top_B[None], axis=0), _inverse_cdf(mass_CB, uniform_B2[:, 0])
    )
    rows_B = jnp.arange(scaled_RCB.shape[2])
    scaled_RB = scaled_RCB[:, column_B, rows_B]
    mass_RB = jnp.where(scaled_RB >= floor_B[None], jnp.exp(scaled_RB - top_B[None]), 0.0)
    row_B = jnp.where(
        greedy_B, jnp.argmax(scaled_RB == top_B[None], axis=0), _inverse_cdf(mass_RB, uniform_B2[:, 1])
    )
    logprob_B = scaled_RB[row_B, rows_B] - top_B - jnp.log(total_B)
    return (row_B * COLUMNS + column_B).astype(jnp.int32), logprob_B


def _columns(logits_VB: Float[Array, "V B"]) -> Float[Array, "R C B"]:
    """Token r * COLUMNS + c of row b at [r, c, b]; reductions over r run along contiguous memory."""
    vocab, rows = logits_VB.shape
    padding = -vocab % COLUMNS
    if padding:
        logits_VB = jnp.pad(logits_VB, ((0, padding), (0, 0)), constant_values=-jnp.inf)
    return logits_VB.reshape(-1, COLUMNS, rows)


def _uniforms(stream_B: Key[Array, "B"], index_B: Int[Array, "B"]) -> Float[Array, "B 2"]:
    """Two numbers in [0, 1) per row: the generator's output block for (stream, index), 23 bits of each word."""
    words_B2 = jax.random.key_data(jax.vmap(jax.random.fold_in)(stream_B, index_B))
    return (words_B2 >> 9).astype(jnp.float32) * jnp.float32(2.0**-23)


def _inverse_cdf(mass_NB: Float[Array, "N B"], uniform_B: Float[Array, "B"]) -> Int[Array, "B"]:
    """First entry of positive mass whose cumulative sum exceeds uniform * total.

    A parallel cumulative sum may rise by a rounding error where the mass is 0, hence the explicit test.
    """
    cumulative_NB = jnp.cumsum(mass_NB, axis=0)
    crossed_NB = (cumulative_NB > (uniform_B * cumulative_NB[-1])[None]) & (mass_NB > 0)
    return jnp.where(crossed_NB.any(axis=0), jnp.argmax(crossed_NB, axis=0), jnp.argmax(mass_NB, axis=0))


def _floor(
    scaled_RCB: Float[Array, "R C B"], top_B: Float[Array, "B"], rule: Rule, greedy_B: Bool[Array, "B"]
) -> Float[Array, "B"]:
    """Smallest scaled logit that each row keeps; -inf without a filter, at the price of one comparison."""
    by_rank_B = (rule.top_k_B > 0) & ~greedy_B
    by_mass_B = (rule.top_p_B < 1) & ~greedy_B
    by_peak_B = (rule.min_p_B > 0) & ~greedy_B
    none_B = jnp.full_like(top_B, -jnp.inf)

    def searched() -> Float[Array, "B"]:
        active_2B = jnp.stack([by_rank_B, by_mass_B])
        prob_RCB = jnp.exp(scaled_RCB - top_B[None, None])

        def narrow(floor_B: Float[Array, "B"], stage: tuple[Array, Array]) -> tuple[Float[Array, "B"], None]:
            """Rank first (every logit weighs 1, k of them), then mass (p of what rank has left)."""
            by_rank, active_B = stage
            weight_RCB = jnp.where(scaled_RCB >= floor_B[None, None], jnp.where(by_rank, 1.0, prob_RCB), 0.0)
            share_B = rule.top_p_B * weight_RCB.sum(axis=0).sum(axis=0)
            target_B = jnp.where(by_rank, rule.top_k_B.astype(jnp.float32), share_B)
            bound_B = _largest_bound(scaled_RCB, weight_RCB, target_B, active_B)
            return jnp.where(active_B, jnp.maximum(floor_B, bound_B), floor_B), None

        return jax.lax.scan(narrow, none_B, (jnp.asarray([True, False]), active_2B))[0]

    floor_B = jax.lax.cond((by_rank_B | by_mass_B).any(), searched, lambda: none_B)
    # min-p compares with the largest probability, which no filter before it removes.
    return jnp.maximum(floor_B, jnp.where(by_peak_B, top_B + jnp.log(rule.min_p_B), none_B))


def _largest_bound(
    scaled_RCB: Float[Array, "R C B"],
    weight_RCB: Float[Array, "R C B"],
    target_B: Float[Array, "B"],
    active_B: Bool[Array, "B"],
) -> Float[Array, "B"]:
    """Largest t with sum(weight where scaled >= t) >= target, exactly, per active row; the smallest logit if none."""
    ordered_RCB = _ordered(scaled_RCB)
    low_B, high_B = ordered_RCB.min(axis=0).min(axis=0), ordered_RCB.max(axis=0).max(axis=0)

    def halve(bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low_B, high_B = bounds
        # Mean rounded up without overflow of int32.
        middle_B = (low_B >> 1) + (high_B >> 1) + ((low_B | high_B) & 1)
        above_B = jnp.where(ordered_RCB >= middle_B[None, None], weight_RCB, 0.0).sum(axis=0).sum(axis=0)
        enough_B = above_B >= target_B
        return jnp.where(enough_B, middle_B, low_B), jnp.where(enough_B, high_B, middle_B - 1)

    start = jnp.where(active_B, low_B, high_B), high_B
    low_B, _ = jax.lax.while_loop(lambda bounds: (bounds[0] < bounds[1]).any(), halve, start)
    return _unordered(low_B)


def _ordered(value: Float[Array, "..."]) -> Int[Array, "..."]:
    """int32 with the order of float32: the bits themselves for positives, the rest flipped for negatives."""
    bits = jax.lax.bitcast_convert_type(value, jnp.int32)
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)


def _unordered(ordered: Int[Array, "..."]) -> Float[Array, "..."]:
    bits = jnp.where(ordered < 0, ordered ^ jnp.int32(0x7FFFFFFF), ordered)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)
