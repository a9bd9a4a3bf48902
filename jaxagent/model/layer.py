"""One transformer block as a pure function of (weights, x, rotary tables, attend).

`attend(q, k, v) -> (attention output, anything)`: the training path gives packed causal attention, the
decoder one that writes its cache and returns it as the second value. Weights are one layer's slice of the
stacked parameters, already in the compute dtype; norms and the router's softmax run in float32 because bf16
sums lose digits there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxagent.mesh.rules import constrain
from jaxagent.model.moe import experts
from jaxagent.model.rope import rotate
from jaxagent.model.spec import ModelSpec

Weights = Mapping[str, Array]
Tables = tuple[Array, Array]
Attend = Callable[[Array, Array, Array], tuple[Array, Any]]


def rms_norm(
    x: Float[Array, "*batch D"], weight_D: Float[Array, "D"], eps: float
) -> Float[Array, "*batch D"]:
    """weight * x / sqrt(mean(x²) + eps), in float32, returned in x's dtype."""
    wide = x.astype(jnp.float32)
    normed = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    weight = weight_D.astype(jnp.float32).reshape((1,) * (x.ndim - 1) + (-1,))
    return (normed * weight).astype(x.dtype)


def project(
    weights: Weights, name: str, x: Float[Array, "B T i"], lora_scale: float
) -> Float[Array, "B T o"]:
    """x W (+ scale · (x A) B where the target has an adapter) (+ bias)."""
    y = _product(x, weights[name])
    if f"{name}_a" in weights:
        y = y + lora_scale * _product(_product(x, weights[f"{name}_a"]), weights[f"{name}_b"])
    bias = weights.get(f"{name}_bias")
    return y if bias is None else y + bias[None, None]


def _product(x: Float[Array, "B T i"], matrix: Float[Array, "i o"]) -> Float[Array, "B T o"]:
    """x matrix. On one device over all tokens as one axis: with two, the CPU compiler transposes x for the matrix's
    gradient, a third of an MLP's time. Under a mesh the axes are split apart and must stay two."""
    if jax.sharding.get_abstract_mesh().empty:
        return (x.reshape(-1, x.shape[-1]) @ matrix).reshape(*x.shape[:-1], -1)
    return jnp.einsum("bti,io->bto", x, matrix)


def attention(
    spec: ModelSpec,
    weights: Weights,
    x: Float[Array, "B T D"],
    tables: Tables,
    attend: Attend,
    lora_scale: float,
) -> tuple[Float[Array, "B T D"], Any]:
    """Projections, per-head norms, rotary, `attend`, output projection."""
    B, T = x.shape[:2]

    def heads(name: str, count: int, axis: str) -> Array:
        y = project(weights, name, x, lora_scale).reshape(B, T, count, spec.head_dim)
        y = constrain(y, "batch", "sequence", axis, None)
        if name == "v":
            return y
        if spec.qk_norm:
            y = rms_norm(y, weights[f"{name}_norm"], spec.norm_eps)
        # Again after the rotation: without both, its halves are split over tokens and exchanged in each pass.
        return constrain(rotate(y, tables), "batch", "sequence", axis, None)

    q, k, v = (
        heads("q", spec.heads, "heads"),
        heads("k", spec.kv_heads, "kv_heads"),
        heads("v", spec.kv_heads, "kv_heads"),
    )
    out, extra = attend(q, k, v)
    out = out.reshape(B, T, spec.heads * spec.head_dim)
    return project(weights, "o", constrain(out, "batch", "sequence", "heads"), lora_scale), extra


def mlp(weights: Weights, x: Float[Array, "B T D"], lora_scale: float) -> Float[Array, "B T D"]:
    """SwiGLU: (silu(x G) * x U) W."""
    gate = project(weights, "gate", x, lora_scale)
    up = project(weights, "up", x, lora_scale)
    hidden = constrain(jax.nn.silu(gate) * up, "batch", "sequence", "mlp")
    return project(weights, "down", hidden, lora_scale)


def block(
    spec: ModelSpec,
    weights: Weights,
    x: Float[Array, "B T D"],
    tables: Tables,
    attend: Attend,
    lora_scale: float,
) -> tuple[Float[Array, "B T D"], Any]:
    """x + attention(norm(x)), then x + mlp(norm(x)). Returns (x, `attend`'s second value)."""
    normed = constrain(rms_norm(x, weights["attn_norm"], spec.norm_eps), "batch", "sequence", None)
    out, extra = attention(spec, weights, normed, tables, attend, lora_scale)
    x = constrain(x + out, "batch", "residual", None)
    normed = constrain(rms_norm(x, weights["mlp_norm"], spec.norm_eps), "batch", "sequence", None)
    out = experts(spec, weights, normed) if spec.experts else mlp(weights, normed, lora_scale)
    return constrain(x + out, "batch", "residual", None), extra
