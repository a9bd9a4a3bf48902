"""Rotary position embedding, rotate-half form, with the scalings of ModelSpec.rope; frequencies are constants."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxagent.model.spec import Rope


def frequencies(rope: Rope, head_dim: int) -> tuple[np.ndarray, float]:
    """(inverse frequencies [H/2] float32, factor on cos and sin), as in transformers' modeling_rope_utils."""
    inverse = 1.0 / rope.theta ** (np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim))
    inverse = inverse.astype(np.float32)
    if rope.kind == "linear":
        return (inverse / rope.factor).astype(np.float32), 1.0
    if rope.kind == "llama3":
        return _llama3(rope, inverse), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, inverse, head_dim)
    return inverse, 1.0


def _llama3(rope: Rope, inverse: np.ndarray) -> np.ndarray:
    """Long wavelengths are divided by `factor`, short ones kept, those between blended (Llama 3.1)."""
    wavelength = 2 * np.pi / inverse
    smooth = (rope.original / wavelength - rope.low) / (rope.high - rope.low)
    blended = (1 - smooth) * inverse / rope.factor + smooth * inverse
    out = np.where(wavelength > rope.original / rope.low, inverse / rope.factor, blended)
    return np.where(wavelength < rope.original / rope.high, inverse, out).astype(np.float32)


def _yarn(rope: Rope, inverse: np.ndarray, head_dim: int) -> tuple[np.ndarray, float]:
    """Ramp from kept to interpolated frequencies; cos and sin grow by 0.1 ln(factor) + 1 (arXiv 2309.00071)."""

    def dimension(rotations: float) -> float:
        return head_dim * math.log(rope.original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(head_dim // 2, dtype=np.float32) - low) / (high - low), 0, 1)
    scaled = (inverse / rope.factor) * ramp + inverse * (1 - ramp)
    growth = 1.0 if rope.factor <= 1 else 0.1 * math.log(rope.factor) + 1.0
    return scaled.astype(np.float32), rope.attention_factor or growth


def rope_tables(
    rope: Rope, head_dim: int, position_BT: Int[Array, "B T"]
) -> tuple[Float[Array, "B T 1 h"], Float[Array, "B T 1 h"]]:
    """cos and sin of position x frequency in float32, h = H / 2; one table for all heads and layers."""
    inverse, growth = frequencies(rope, head_dim)
    angle = position_BT.astype(jnp.float32)[..., None] * jnp.asarray(inverse)[None, None]
    return jnp.cos(angle)[:, :, None] * growth, jnp.sin(angle)[:, :, None] * growth


def rotate(
    x_BTNH: Float[Array, "B T N H"], tables: tuple[Float[Array, "B T 1 h"], Float[Array, "B T 1 h"]]
) -> Float[Array, "B T N H"]:
    """Turn the pairs (x[i], x[i + H/2]) by the position's angle; computed in float32, returned in x's dtype."""
    cos, sin = tables
    first, second = jnp.split(x_BTNH.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x_BTNH.dtype)
