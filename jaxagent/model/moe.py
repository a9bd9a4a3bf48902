"""Mixture of experts as in Qwen3-MoE: softmax router in float32, top-k, every token kept (no capacity limit).

The tokens are sorted by expert and multiplied with `jax.lax.ragged_dot`, so the work is that of the chosen
experts only. Under a mesh each batch shard sorts its own tokens inside a shard_map; experts are split along
their width.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from jaxagent.mesh.rules import TENSOR, partition
from jaxagent.model.spec import ModelSpec


def route(
    spec: ModelSpec, router_DE: Float[Array, "D E"], x_XD: Float[Array, "X D"]
) -> tuple[Float[Array, "X k"], Int[Array, "X k"]]:
    """(weights, expert ids) of each token's k experts; weights sum to 1 if the spec says so."""
    probs_XE = jax.nn.softmax(jnp.einsum("xd,de->xe", x_XD, router_DE).astype(jnp.float32), axis=-1)
    weight_Xk, expert_Xk = jax.lax.top_k(probs_XE, spec.experts_per_token)
    if spec.norm_topk:
        weight_Xk = weight_Xk / weight_Xk.sum(axis=-1, keepdims=True)
    return weight_Xk.astype(x_XD.dtype), expert_Xk


def mix(spec: ModelSpec, weights: Mapping[str, Array], x_XD: Float[Array, "X D"]) -> Float[Array, "X D"]:
    """sum over a token's experts of weight · SwiGLU_e(x)."""
    tokens, k = x_XD.shape[0], spec.experts_per_token
    weight_Xk, expert_Xk = route(spec, weights["router"], x_XD)
    order = jnp.argsort(expert_Xk.reshape(-1))
    sizes_E = jnp.bincount(expert_Xk.reshape(-1), length=spec.experts)
    sorted_x = x_XD[order // k]
    gate = jax.lax.ragged_dot(sorted_x, weights["gate"], sizes_E)
    up = jax.lax.ragged_dot(sorted_x, weights["up"], sizes_E)
    out = jax.lax.ragged_dot(jax.nn.silu(gate) * up, weights["down"], sizes_E)
    back = jnp.zeros_like(out).at[order].set(out).reshape(tokens, k, -1)
    return jnp.einsum("xkd,xk->xd", back, weight_Xk)


def experts(
    spec: ModelSpec, weights: Mapping[str, Array], x_BTD: Float[Array, "B T D"]
) -> Float[Array, "B T D"]:
    """The MoE block on [B, T, D]; weights: router [D, E], gate and up [E, D, F], down [E, F, D]."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return mix(spec, weights, x_BTD.reshape(-1, spec.width)).reshape(x_BTD.shape)
    names = ("router", "gate", "up", "down")
    used = {name: weights[name] for name in names}
    x_spec = partition(("batch", "sequence", None), x_BTD.shape, mesh)
    wide = partition(("experts", None, "mlp"), weights["gate"].shape, mesh)
    tall = partition(("experts", "mlp", None), weights["down"].shape, mesh)
    specs = {"router": PartitionSpec(None, None), "gate": wide, "up": wide, "down": tall}
    split = tall[1] is not None

    def local(x: Array, weights: Mapping[str, Array]) -> Array:
        out = mix(spec, weights, x.reshape(-1, spec.width)).reshape(x.shape)
        return jax.lax.psum(out, TENSOR) if split else out

    return jax.shard_map(local, in_specs=(x_spec, specs), out_specs=x_spec, check_vma=False)(x_BTD, used)
