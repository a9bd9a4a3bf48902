"""The decoder's forward pass: Q new tokens per row on top of a KV cache. Prefill (Q > 1) and decode (Q = 1) alike.

It runs the same block as training (model/layer.py) with another `attend`. Layers are unrolled: weights and cache are
tuples of layers, so nothing is sliced or copied inside the token loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxagent.model.cache import Cache, write
from jaxagent.model.layer import block, rms_norm
from jaxagent.model.rope import rope_tables
from jaxagent.model.spec import ModelSpec


class Weights(NamedTuple):
    """Decoder weights: compute dtype, adapters merged. `head_VD` is None where it is the embedding."""

    embed_VD: Float[Array, "V D"]
    final_norm_D: Float[Array, "D"]
    head_VD: Float[Array, "V D"] | None
    layers: tuple[Mapping[str, Array], ...]


def extend(
    spec: ModelSpec,
    weights: Weights,
    token_BQ: Int[Array, "B Q"],
    position_BQ: Int[Array, "B Q"],
    cache: Cache,
) -> tuple[Float[Array, "B Q D"], Cache]:
    """Hidden states after the final norm, and the cache with the new tokens written at their positions.

    Row b uses cache row b. A token sees every cache entry at or before its own position, so the rows of a
    call may have different lengths, and padding (position OFF) at the end of a row harms nothing.
    """
    row_B = jnp.arange(token_BQ.shape[0])
    tables = rope_tables(spec.rope, spec.head_dim, position_BQ)
    x_BQD = jnp.take(weights.embed_VD, token_BQ, axis=0)
    keys, values = [], []
    for layer, k_cache, v_cache in zip(weights.layers, cache.keys, cache.values):

        def attend(q: Array, k: Array, v: Array, k_cache=k_cache, v_cache=v_cache):
            written = write((k_cache, v_cache), row_B, position_BQ, (k, v))
            return cached_attention(q, written, position_BQ), written

        x_BQD, (k_cache, v_cache) = block(spec, layer, x_BQD, tables, attend, 0.0)
        keys.append(k_cache)
        values.append(v_cache)
    return rms_norm(x_BQD, weights.final_norm_D, spec.norm_eps), Cache(tuple(keys), tuple(values))


def cached_attention(
    q_BQNH: Float[Array, "B Q N H"], layer: tuple[Array, Array], position_BQ: Int[Array, "B Q"]
) -> Float[Array, "B Q N H"]:
    """softmax(q k / sqrt(H)) v over cache positions <= the query's own; softmax in float32."""
    keys_BKHS, values_BKSH = layer
    B, Q, N, H = q_BQNH.shape
    K, S = keys_BKHS.shape[1], keys_BKHS.shape[3]
    grouped = q_BQNH.reshape(B, Q, K, N // K, H).transpose(0, 2, 3, 1, 4).reshape(B, K, N // K * Q, H)
    score = jnp.einsum("bkmh,bkhs->bkms", grouped, keys_BKHS, preferred_element_type=jnp.float32)
    score = score.reshape(B, K, N // K, Q, S) * H**-0.5
    seen_BQS = jnp.arange(S)[None, None] <= position_BQ[:, :, None]
    score = jnp.where(seen_BQS[:, None, None], score, -jnp.inf)
    share = jax.nn.softmax(score, axis=-1).astype(values_BKSH.dtype).reshape(B, K, N // K * Q, S)
    out = jnp.einsum("bkms,bksh->bkmh", share, values_BKSH)
    return out.reshape(B, K, N // K, Q, H).transpose(0, 3, 1, 2, 4).reshape(B, Q, N, H)


def logits_VB(weights: Weights, hidden_BD: Float[Array, "B D"]) -> Float[Array, "V B"]:
    """float32 logits, vocabulary first: the head is read as it lies, at any number of rows (see decode/sampling.py)."""
    head_VD = weights.embed_VD if weights.head_VD is None else weights.head_VD
    return jnp.einsum("vd,bd->vb", head_VD, hidden_BD, preferred_element_type=jnp.float32)
