"""Causal attention over packed rows for training: a TPU kernel, a plain reference, one dispatcher.

In: q [B, T, N, H], k and v [B, T, K, H] with N a multiple of K (query head n reads key head n // (N/K)), and
segment ids [B, T]. A token sees the tokens of its own segment up to itself; padding (segment 0) sees padding
only, and what it returns is never read. Out: [B, T, N, H] in q's dtype; the softmax is float32.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from jaxagent.errors import ConfigError
from jaxagent.mesh.rules import CONTEXT, TENSOR, partition, platform

Kernel = Literal["auto", "xla", "splash"]
LONG = 1024  # tokens of a row
SAVED = "attention"  # checkpoint name: a remat policy may keep the attention's output


def attend(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T K H"],
    segment_BT: Int[Array, "B T"],
    *,
    kernel: Kernel = "auto",
    interpret: bool = False,
) -> Float[Array, "B T N H"]:
    """Packed causal attention. "auto" is splash on TPU and xla elsewhere; splash elsewhere raises."""
    where = platform()
    if kernel == "auto":
        kernel = "splash" if where == "tpu" else "xla"
    if kernel == "xla":
        return checkpoint_name(attend_xla(q, k, v, segment_BT), SAVED)
    if where != "tpu" and not interpret:
        raise ConfigError(f"attention kernel 'splash' runs on TPU, the platform here is {where!r}; use 'xla'")
    return attend_splash(q, k, v, segment_BT, interpret=interpret)


def attend_xla(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T K H"],
    segment_BT: Int[Array, "B T"],
) -> Float[Array, "B T N H"]:
    """Reference, and the kernel of CPU runs: at most four blocks of queries, each reading only the keys
    before its end, which saves up to half of the work. Heads lead, and the queries of one key head form one
    matrix product.
    """
    B, T, N, H = q.shape
    K = k.shape[2]
    q = q.reshape(B, T, K, N // K, H).transpose(0, 2, 3, 1, 4)
    k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    # Long rows recompute each block's scores in the backward pass, so that one block is alive at a time.
    piece = jax.checkpoint(_attend_block) if T > LONG else _attend_block
    block = max(64, -(-T // 4))
    outs = []
    for start in range(0, T, block):
        stop = min(start + block, T)
        segments = segment_BT[:, start:stop], segment_BT[:, :stop]
        outs.append(piece(q[:, :, :, start:stop], k[:, :, :stop], v[:, :, :stop], *segments))
    out = outs[0] if len(outs) == 1 else jnp.concatenate(outs, axis=3)
    return out.transpose(0, 3, 1, 2, 4).reshape(B, T, N, H)


def _attend_block(q: Array, k: Array, v: Array, q_segment: Array, k_segment: Array) -> Array:
    """q [B, K, G, t, H]: the last t of the s tokens of k and v [B, K, s, H]. Returns q's shape."""
    B, K, G, t, H = q.shape
    s = k.shape[2]
    scores = jnp.einsum("bkmh,bksh->bkms", q.reshape(B, K, G * t, H), k, preferred_element_type=jnp.float32)
    causal = (jnp.arange(t) + (s - t))[:, None] >= jnp.arange(s)[None]
    mask = causal[None] & (q_segment[:, :, None] == k_segment[:, None, :])
    scores = jnp.where(mask[:, None, None], scores.reshape(B, K, G, t, s) * H**-0.5, -1e30)
    probs = jax.nn.softmax(scores, axis=-1).astype(v.dtype).reshape(B, K, G * t, s)
    return jnp.einsum("bkms,bksh->bkmh", probs, v).reshape(q.shape)


def attend_splash(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T K H"],
    segment_BT: Int[Array, "B T"],
    *,
    interpret: bool = False,
) -> Float[Array, "B T N H"]:
    """Splash kernel, under a mesh one call a shard: batch and heads are split, and a split token axis is
    exchanged for a split of the heads around the kernel (Ulysses, arXiv 2309.14509)."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return _splash(q, k, v, segment_BT, interpret)
    tensor, context = mesh.shape.get(TENSOR, 1), mesh.shape.get(CONTEXT, 1)
    k, v = (_spread_heads(x, tensor * context, q.shape[2]) for x in (k, v))
    q_spec, k_spec = (partition(("batch", "sequence", "heads", None), x.shape, mesh) for x in (q, k))
    segment_spec = partition(("batch", "sequence"), segment_BT.shape, mesh)

    def local(q: Array, k: Array, v: Array, segment: Array) -> Array:
        if context == 1:
            return _splash(q, k, v, segment, interpret)
        q, k, v = (jax.lax.all_to_all(x, CONTEXT, 2, 1, tiled=True) for x in (q, k, v))
        segment = jax.lax.all_gather(segment, CONTEXT, axis=1, tiled=True)
        return jax.lax.all_to_all(_splash(q, k, v, segment, interpret), CONTEXT, 1, 2, tiled=True)

    mapped = jax.shard_map(
        local, in_specs=(q_spec, k_spec, k_spec, segment_spec), out_specs=q_spec, check_vma=False
    )
    return mapped(q, k, v, segment_BT)


def _spread_heads(x: Array, shards: int, heads: int) -> Array:
    """Repeat key/value heads until every shard has whole ones."""
    if heads % shards:
        raise ConfigError(f"{heads} query heads cannot be split over tensor x context = {shards} shards")
    kv_heads = x.shape[2]
    if kv_heads % shards == 0:
        return x
    if shards % kv_heads:
        raise ConfigError(
            f"{kv_heads} key/value heads and tensor x context = {shards}: neither divides the other"
        )
    return jnp.repeat(x, shards // kv_heads, axis=2)


def _splash(q: Array, k: Array, v: Array, segment_BT: Array, interpret: bool) -> Array:
    """The kernel on whole rows of any length."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    T, N, H = q.shape[1:]
    # The kernel wants whole blocks: rows are padded, by less than an eighth where that allows larger blocks.
    # Padding comes last, so in causal order no token of the row sees it.
    block = next(size for size in (1024, 512, 256, 128) if -T % size < T // 8 or size == 128)
    padding = -T % block
    if padding:
        q, k, v = (jnp.pad(x, ((0, 0), (0, padding), (0, 0), (0, 0))) for x in (q, k, v))
        segment_BT = jnp.pad(segment_BT, ((0, 0), (0, padding)))
    compute = min(512, block)
    # Unfused backward and blocks 1024/512: the fused one keeps dq once per key block (3.5 GiB at 32k tokens),
    # and blocks of 2048 overflow the kernel's 16 MiB of vector memory.
    sizes = kernels.BlockSizes(
        block_q=block,
        block_kv=block,
        block_kv_compute=compute,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_kv_dkv_compute=compute,
        block_q_dq=block,
        block_kv_dq=block,
        use_fused_bwd_kernel=False,
    )
    splash = kernels.make_splash_mha(
        masks.MultiHeadMask([masks.CausalMask((T + padding, T + padding))] * N),
        block_sizes=sizes,
        head_shards=1,
        q_seq_shards=1,
        residual_checkpoint_name=SAVED,
        interpret=interpret,
    )

    def row(q: Array, k: Array, v: Array, segment: Array) -> Array:
        q, k, v = (x.swapaxes(0, 1) for x in (q, k, v))
        out = splash(q, k, v, segment_ids=kernels.SegmentIds(segment, segment))
        return jnp.swapaxes(jnp.asarray(out), 0, 1)

    # The kernel does not scale its scores.
    return jax.vmap(row)(q * H**-0.5, k, v, segment_BT).astype(q.dtype)[:, :T]
