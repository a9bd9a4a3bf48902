"""Walks over tiles of a product of rows [X, D] with a head [V, D], so that [X, V] never exists.

Axes: C rows of a token tile, b head rows of a vocabulary tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
from jax import lax


@dataclass(frozen=True)
class Tiles:
    """How many logits exist at a time: `tokens` x `vocab`; vocab 0 is the whole vocabulary in one tile."""

    tokens: int
    vocab: int = 0


CPU_TILES = Tiles(tokens=256, vocab=1024)  # 1 MiB of logits: measured best on a 2-core EPYC, flat around it
ACCELERATOR_TILES = Tiles(tokens=1024)


def product(a, b, a_axis: int, b_axis: int):
    """Two matrices contracted over one axis each, accumulated in float32."""
    return lax.dot_general(a, b, (((a_axis,), (b_axis,)), ((), ())), preferred_element_type=jnp.float32)


def over_vocab(size: int, head_VD, carry, body: Callable):
    """Fold `body(carry, head_bD, start)` over vocabulary tiles."""
    vocab = head_VD.shape[0]
    size = tile_size(vocab, size)
    whole = vocab // size
    if whole == 1:
        carry = body(carry, head_VD[:size], 0)
    else:
        slice_ = partial(lax.dynamic_slice_in_dim, head_VD, slice_size=size)
        carry = lax.fori_loop(0, whole, lambda i, c: body(c, slice_(start_index=i * size), i * size), carry)
    if vocab % size:  # traced, and compiled, once more
        carry = body(carry, head_VD[whole * size :], whole * size)
    return carry


def tile_size(vocab: int, wanted: int) -> int:
    """`wanted`, or the divisor of `vocab` nearest to it within a factor of 2, which spares a ragged last tile
    (Qwen: 151,936 = 128 x 1,187)."""
    if not wanted or wanted >= vocab:
        return vocab
    near = [size for size in range(wanted // 2 + 1, 2 * wanted) if vocab % size == 0]
    return min(near, key=lambda size: abs(size - wanted)) if near else wanted


def kept_first(keep_X):
    """An order in which the rows that count come first, and how many do."""
    return jnp.argsort(~keep_X, stable=True), keep_X.sum()


def rows_of_tile(order_X, i, size: int, keep_X):
    """Row indices of token tile `i` and which of them count; the last tile is moved back inside the array."""
    start = jnp.minimum(i * size, order_X.shape[0] - size)
    index_C = lax.dynamic_slice_in_dim(order_X, start, size)
    return index_C, keep_X[index_C] & (start + jnp.arange(size) >= i * size)
