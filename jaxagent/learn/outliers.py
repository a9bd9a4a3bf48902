"""Gradient norms that are out of the ordinary. In: the norms of a stage's steps. Out: the largest that is still usual.

A step beyond it is skipped. It is remembered as if its norm had been the limit: one spike does not hide the next, and a
lasting rise becomes the new usual.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

STEADY, WINDOW = 10, 100  # steps before any norm is an outlier; steps that the running moments look back on


def no_norms() -> Float[np.ndarray, "3"]:
    """Number, mean and variance of the norms seen: none yet."""
    return np.zeros(3, np.float32)


def norm_limit(seen_3: Float[Array, "3"], sigma: float) -> Float[Array, ""]:
    """mean + sigma standard deviations; no limit in the first steps."""
    count, mean, variance = seen_3
    return jnp.where(count < STEADY, jnp.inf, mean + sigma * jnp.sqrt(variance))


def with_norm(seen_3: Float[Array, "3"], norm: Float[Array, ""]) -> Float[Array, "3"]:
    """The moments after one more norm: exact over the first WINDOW, exponential after. 1, 2, 3 -> (3, 2, 2/3)."""
    count, mean, variance = seen_3
    share = 1.0 / jnp.minimum(count + 1.0, WINDOW)
    off = norm - mean
    return jnp.stack([count + 1.0, mean + share * off, (1.0 - share) * (variance + share * off**2)])
