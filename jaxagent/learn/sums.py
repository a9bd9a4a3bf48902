"""Metrics that reduce exactly: a mean is carried as (sum, count), whatever the number of micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxagent.types import Metrics


class Mean(NamedTuple):
    """A mean in the making."""

    total: Float[Array, ""]
    weight: Float[Array, ""]


class Sum(NamedTuple):
    total: Float[Array, ""]


class Max(NamedTuple):
    """A maximum of non-negative numbers; 0 where there was nothing (never an empty reduction)."""

    value: Float[Array, ""]


class Effective(NamedTuple):
    """Effective share of n weights, (sum w)^2 / (n sum w^2): 1 if all are equal, 1/n if one has all the weight."""

    total: Float[Array, ""]
    square: Float[Array, ""]
    weight: Float[Array, ""]


Entry = Mean | Sum | Max | Effective
Sums = Mapping[str, Entry]


def mean_of(value_BS: Float[Array, "*S"], mask_BS: Bool[Array, "*S"]) -> Mean:
    return Mean(jnp.where(mask_BS, value_BS, 0.0).sum(), mask_BS.sum().astype(jnp.float32))


def max_of(value_BS: Float[Array, "*S"], mask_BS: Bool[Array, "*S"]) -> Max:
    return Max(jnp.where(mask_BS, value_BS, 0.0).max(initial=0.0))


def effective_of(value_BS: Float[Array, "*S"], mask_BS: Bool[Array, "*S"]) -> Effective:
    kept_BS = jnp.where(mask_BS, value_BS, 0.0)
    return Effective(kept_BS.sum(), (kept_BS**2).sum(), mask_BS.sum().astype(jnp.float32))


def add(left: Sums, right: Sums) -> dict[str, Entry]:
    """Combine two micro-batches' sums; both hold the same names."""
    return {name: _join(left[name], right[name]) for name in left}


def _join(left: Entry, right: Entry) -> Entry:
    if isinstance(left, Max) and isinstance(right, Max):
        return Max(jnp.maximum(left.value, right.value))
    return type(left)(*(a + b for a, b in zip(left, right)))


def finish(sums: Sums) -> Metrics:
    """Host floats; a mean over nothing is left out."""
    out: Metrics = {}
    for name, entry in sums.items():
        if isinstance(entry, (Mean, Effective)) and float(entry.weight) == 0:
            continue
        if isinstance(entry, Mean):
            out[name] = float(np.float64(entry.total) / np.float64(entry.weight))
        elif isinstance(entry, Effective):
            out[name] = float(np.float64(entry.total) ** 2 / (np.float64(entry.weight) * entry.square))
        else:
            out[name] = float(entry[0])
    return out
