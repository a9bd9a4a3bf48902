"""The decoder's three device programs, compiled once per shape: prefill, decode, copy.

Each takes the whole cache, donated, and a list of slots. Rows work on a copy of their slots' first `length`
positions and write back what is new, so a call costs by its rows and length, not by the size of the cache; a
decode call over all slots and the whole length works in place. Rows that take no part have slot = number of
slots. Not its job: deciding what runs (scheduler.py).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, UInt32

from jaxagent.decode.buckets import Buckets
from jaxagent.decode.handoff import hand_off
from jaxagent.decode.sampling import Rule, sample, stream_keys
from jaxagent.model.cache import OFF, Cache, cache_formats, copy_slots, init_cache, put, take
from jaxagent.model.extend import Weights, extend, logits_VB
from jaxagent.model.spec import ModelSpec

MAX_STOPS = 8  # stop ids of one request
COPIES = 8  # slots copied by one call


class Rows(NamedTuple):
    """What a decode call needs of each row. `limit` tokens are sampled at most; 0 marks an unused row."""

    slot_R: Int[Array, "R"]
    token_R: Int[Array, "R"]
    position_R: Int[Array, "R"]
    index_R: Int[Array, "R"]  # index in its message of the next token to be sampled
    limit_R: Int[Array, "R"]
    stream_R5: UInt32[Array, "R 5"]
    stop_RM: Int[Array, "R M"]
    rule: Rule


class Sampled(NamedTuple):
    token_RN: Int[Array, "R N"]
    logprob_RN: Float[Array, "R N"]
    count_R: Int[Array, "R"]


def prefill(
    spec: ModelSpec,
    length: int,
    weights: Weights,
    cache: Cache,
    slot_R: Int[Array, "R"],
    token_RQ: Int[Array, "R Q"],
    position_RQ: Int[Array, "R Q"],
) -> Cache:
    """Write the KV of tokens at their positions. No logits: a job's last token goes through `decode`."""
    work = take(cache, slot_R, length)
    _, work = extend(spec, weights, token_RQ, position_RQ, work)
    return put(cache, slot_R, work, position_RQ)


def decode(
    spec: ModelSpec, length: int, tokens: int, weights: Weights, cache: Cache, rows: Rows
) -> tuple[Cache, Sampled]:
    """Sample up to `tokens` tokens per row; ends early when every row has stopped or reached its limit."""
    count = rows.slot_R.shape[0]
    in_place = count == cache.slots and length == cache.length
    work = cache if in_place else take(cache, rows.slot_R, length)
    stream_R = stream_keys(rows.stream_R5)
    out = Sampled(
        jnp.zeros((count, tokens), jnp.int32), jnp.zeros((count, tokens)), jnp.zeros((count,), jnp.int32)
    )

    def step(state: tuple[Array, Array, Array, Cache, Sampled]) -> tuple[Array, Array, Array, Cache, Sampled]:
        n, token_R, live_R, work, out = state
        position_R1 = jnp.where(live_R, rows.position_R + n, OFF)[:, None]
        hidden_R1D, work = extend(spec, weights, token_R[:, None], position_R1, work)
        logits = logits_VB(weights, hidden_R1D[:, 0])
        token_R, logprob_R = sample(logits, stream_R, rows.index_R + n, rows.rule)
        out = Sampled(
            out.token_RN.at[:, n].set(token_R), out.logprob_RN.at[:, n].set(logprob_R), out.count_R + live_R
        )
        stopped_R = (token_R[:, None] == rows.stop_RM).any(axis=1)
        return n + 1, token_R, live_R & ~stopped_R & (n + 1 < rows.limit_R), work, out

    def more(state: tuple[Array, Array, Array, Cache, Sampled]) -> Array:
        return (state[0] < tokens) & state[2].any()

    start = (jnp.int32(0), rows.token_R, rows.limit_R > 0, work, out)
    _, _, _, work, out = jax.lax.while_loop(more, step, start)
    if in_place:
        return work, out
    step_RN = jnp.arange(tokens)[None]
    position_RN = jnp.where(step_RN < out.count_R[:, None], rows.position_R[:, None] + step_RN, OFF)
    return put(cache, rows.slot_R, work, position_RN), out


class Programs:
    """Compiles on first use of a shape and counts it; after `warm_up` nothing is compiled any more.

    In place, row r of a decode call is slot r; otherwise rows come in any order.
    """

    def __init__(self, spec: ModelSpec, *, tokens: int, mesh: Mesh | None = None, copies: bool = False):
        self.spec, self.tokens, self.mesh, self.copies = spec, tokens, mesh, copies
        self.compilations = 0
        self._compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def empty_cache(self, slots: int, length: int, dtype: DTypeLike) -> Cache:
        return init_cache(self.spec, slots=slots, length=length, dtype=dtype, mesh=self.mesh)

    def hand_off(self, graphdef: nnx.GraphDef, params: nnx.State, dtype: DTypeLike) -> tuple[Weights, Array]:
        return hand_off(graphdef, params, dtype=jnp.dtype(dtype), mesh=self.mesh, copies=self.copies)

    def prefill(
        self, length: int, weights: Weights, cache: Cache, arrays: tuple[np.ndarray, np.ndarray, np.ndarray]
    ) -> Cache:
        """arrays: slot_R, token_RQ, position_RQ."""
        return self._program("prefill", length, 1, weights, cache, *arrays)(weights, cache, *arrays)

    def decode(self, length: int, weights: Weights, cache: Cache, rows: Rows) -> tuple[Cache, Sampled]:
        return self._program("decode", length, 1, weights, cache, rows)(weights, cache, rows)

    def copy(self, length: int, cache: Cache, source_R: np.ndarray, target_R: np.ndarray) -> Cache:
        return self._program("copy", length, 0, cache, source_R, target_R)(cache, source_R, target_R)

    def warm_up(self, weights: Weights, cache: Cache, buckets: Buckets) -> None:
        """Compile every shape of `buckets`; nothing runs."""
        slots = cache.slots
        for length in buckets.lengths:
            for rows, queries in buckets.prefill:
                arrays = np.zeros(rows, np.int32), *np.zeros((2, rows, queries), np.int32)
                self._program("prefill", length, 1, weights, cache, *arrays)
            for rows in buckets.decode:
                self._program("decode", length, 1, weights, cache, idle_rows(rows, slots))
            pair = np.zeros((2, COPIES), np.int32)
            self._program("copy", length, 0, cache, *pair)

    def _program(self, kind: str, length: int, donated: int, *arrays: Any) -> Callable[..., Any]:
        """The executable of this kind for the shapes of the host arrays (weights and cache never change shape)."""
        host = tuple(leaf.shape for leaf in jax.tree.leaves(arrays) if isinstance(leaf, np.ndarray))
        key = (kind, length, host)
        if key not in self._compiled:
            function = {
                "prefill": functools.partial(prefill, self.spec, length),
                "decode": functools.partial(decode, self.spec, length, self.tokens),
                "copy": functools.partial(copy_slots, length=length),
            }[kind]
            places: dict[str, Any] = {}
            cache = cache_formats(arrays[donated], self.mesh)
            if cache is not None:  # it must come back as it went in, or the next call would not fit
                whole = None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec())
                places["out_shardings"] = (cache, whole) if kind == "decode" else cache
            with jax.set_mesh(self.mesh) if self.mesh is not None else contextlib.nullcontext():
                jitted = jax.jit(function, donate_argnums=donated, **places)
                self._compiled[key] = jitted.lower(*arrays).compile()
            self.compilations += 1
        return self._compiled[key]


def idle_rows(rows: int, slots: int) -> Rows:
    """Rows of which none is in use, for a caller to fill in."""
    host: Any = np  # these are numpy arrays until the program takes them
    return Rows(
        slot_R=host.full(rows, slots, np.int32),
        token_R=host.zeros(rows, np.int32),
        position_R=host.full(rows, OFF, np.int32),
        index_R=host.zeros(rows, np.int32),
        limit_R=host.zeros(rows, np.int32),
        stream_R5=host.zeros((rows, 5), np.uint32),
        stop_RM=host.full((rows, MAX_STOPS), -1, np.int32),
        rule=Rule(
            temperature_B=host.zeros(rows, np.float32),
            top_k_B=host.zeros(rows, np.int32),
            top_p_B=host.ones(rows, np.float32),
            min_p_B=host.zeros(rows, np.float32),
        ),
    )


def stream_name(seed: int, task: int, rollout: int, step: int) -> Sequence[int]:
    """The five words `stream_keys` folds in; the seed may have 64 bits."""
    mask = 0xFFFFFFFF
    return seed & mask, (seed >> 32) & mask, task & mask, rollout & mask, step & mask
