"""Train parameters -> decoder weights: one jitted program, no host copy.

Cast to the decoder's dtype, adapters merged (in float32, before the cast), stacked layers split into a tuple.
The checksum is computed from the bits of what the decoder will use, so a weight that never arrived shows.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike
from jaxtyping import Array, UInt32

from jaxagent.mesh.rules import sharding
from jaxagent.model.extend import Weights
from jaxagent.model.lora import merge_lora
from jaxagent.model.params import axes_of
from jaxagent.model.transformer import Transformer


@functools.partial(jax.jit, static_argnames=("graphdef", "dtype", "mesh", "copies"))
def hand_off(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    *,
    dtype: DTypeLike,
    mesh: Mesh | None = None,
    copies: bool = False,
) -> tuple[Weights, UInt32[Array, ""]]:
    """(decoder weights, checksum).

    Under a mesh, heads, hidden units and vocabulary are split over `tensor`; what training splits over `fsdp` is
    gathered, since a decoder reads every weight for every token. An array that needs no change is handed on as it is,
    unless `copies` asks for one of the decoder's own.
    """
    model: Transformer = nnx.merge(*merge_lora(graphdef, params))
    stacked = model.stacked()
    layers = tuple(
        {name: value[index].astype(dtype) for name, value in stacked.items()}
        for index in range(model.spec.layers)
    )
    head_VD = None if model.spec.tied else model.head[...].astype(dtype)
    final_norm_D = model.final_norm[...].astype(jnp.float32)  # as in training, which casts the layers only
    weights = Weights(model.embed[...].astype(dtype), final_norm_D, head_VD, layers)
    if mesh is not None:
        weights = jax.lax.with_sharding_constraint(weights, weight_shardings(weights, mesh))
    if copies:
        weights = jax.lax.optimization_barrier(weights)
    return weights, checksum(weights)


def weight_shardings(weights: Weights, mesh: Mesh) -> Weights:
    """The same tree with a NamedSharding in place of each array."""

    def place(name: str, leaf: Array, stacked: int = 0) -> NamedSharding:
        axes = (axes_of(name, leaf.ndim + stacked) or (None,) * leaf.ndim)[stacked:]
        return sharding([None if axis == "embed" else axis for axis in axes], leaf.shape, mesh)

    layers = tuple(
        {name: place(f"layers/{name}", leaf, 1) for name, leaf in layer.items()} for layer in weights.layers
    )
    tops = {
        "embed_VD": place("embed", weights.embed_VD),
        "final_norm_D": place("final_norm", weights.final_norm_D),
        "head_VD": None if weights.head_VD is None else place("head", weights.head_VD),
    }
    return weights._replace(layers=layers, **tops)


def checksum(weights: Weights) -> UInt32[Array, ""]:
    """Sum modulo 2^32 of every element's bits times its odd index: changes with any bit, in any order of devices."""
    total = jnp.uint32(0)
    for leaf in jax.tree.leaves(weights):
        bits = jax.lax.bitcast_convert_type(leaf, jnp.dtype(f"uint{leaf.dtype.itemsize * 8}")).astype(
            jnp.uint32
        )
        place = jax.lax.iota(jnp.uint32, bits.size).reshape(bits.shape) * jnp.uint32(2) + jnp.uint32(1)
        total = total * jnp.uint32(0x01000193) + (bits * place).sum(dtype=jnp.uint32)
    return total
