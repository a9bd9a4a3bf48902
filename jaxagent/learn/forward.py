"""From a packed batch to the scores of its scored tokens: shared by the update and by scoring passes.

In: params and a `Batch` placed on the devices. Out: `Scores`, [B, S] float32. Rows are split over the mesh's
batch axes; the LM head runs on the scored tokens only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Bool

from jaxagent.errors import ConfigError, DataError
from jaxagent.kernels.logprob import HeadShards, Tiles, token_logprobs
from jaxagent.learn.loss import Scores
from jaxagent.learn.state import Params
from jaxagent.mesh.rules import RULES, sharding
from jaxagent.model import critic
from jaxagent.types import Batch

DeviceBatch = Mapping[str, Any]
TOKENS = ("token_BT", "position_BT", "segment_BT")
SCORED = ("column_BS", "target_BS", "turn_BS", "trajectory_BS", "advantage_BS")


@dataclass(frozen=True)
class Execution:
    """Where and how a step runs. mesh None: one device. tiles None: chosen by the backend.

    temperature: of batches that bring none of their own.
    turn: held while programs are started, where a decoder starts its own at the same time.
    """

    mesh: Mesh | None = None
    temperature: float = 1.0
    tiles: Tiles | None = None
    turn: contextlib.AbstractContextManager | None = None

    @property
    def row_shards(self) -> int:
        return (
            1 if self.mesh is None else int(np.prod([self.mesh.shape[axis] for axis in self._axes("batch")]))
        )

    def _axes(self, logical: str) -> tuple[str, ...]:
        return () if self.mesh is None else tuple(a for a in RULES[logical] if a in self.mesh.shape)

    def head_shards(self, vocab: int) -> HeadShards | None:
        if self.mesh is None or self.mesh.size == 1:
            return None
        split = [axis for axis in self._axes("vocab") if self.mesh.shape[axis] > 1]
        whole = not split or vocab % self.mesh.shape[split[0]] != 0
        return HeadShards(self.mesh, self._axes("batch"), None if whole else split[0])

    @contextlib.contextmanager
    def ambient(self) -> Iterator[None]:
        """Model code reads the mesh from the context."""
        mesh = contextlib.nullcontext() if self.mesh is None else jax.set_mesh(self.mesh)
        with self.turn or contextlib.nullcontext(), mesh:
            yield


def place(
    batch: Batch, execution: Execution, *, terms: Sequence[str] = (), streams: Sequence[str] = ()
) -> DeviceBatch:
    """The batch on the devices: rows over the batch axes; only the named terms and streams."""
    rows = batch.token_BT.shape[0]
    if rows % execution.row_shards:
        raise ConfigError(
            f"a micro-batch of {rows} rows cannot be split over {execution.row_shards} devices of the mesh's "
            f"batch axes; make pack.rows a multiple of {execution.row_shards}"
        )
    for kind, wanted, held in (("weight", terms, batch.weight), ("log-prob", streams, batch.logprobs)):
        for name in wanted:
            if name not in held:
                raise DataError(f"the batch has no {kind} stream {name!r}; it has {sorted(held)}")
    arrays = {name: getattr(batch, name) for name in TOKENS + SCORED}
    arrays["logprobs"] = {name: batch.logprobs[name] for name in streams}
    arrays["weight"] = {name: batch.weight[name] for name in terms}
    if batch.temperature is not None:
        arrays["temperature"] = np.float32(batch.temperature)
    arrays["count"] = {name: np.float32(batch.count[name]) for name in terms}
    if execution.mesh is None:
        return jax.device_put(arrays)
    mesh = execution.mesh

    def layout(path: tuple, leaf: np.ndarray | np.float32) -> Any:
        name = path[0].key
        axes = ("batch", "sequence") if name in TOKENS else ("batch", None)
        return sharding(axes[: np.ndim(leaf)], np.shape(leaf), mesh)

    return jax.device_put(arrays, jax.tree_util.tree_map_with_path(layout, arrays))


def scores_of(
    graphdef: Any,
    params: Params,
    batch: DeviceBatch,
    keep_BS: Bool[Array, "B S"],
    *,
    execution: Execution,
    train_head: bool = True,
) -> Scores:
    """Log-prob, entropy and value at the scored tokens with keep_BS, 0 elsewhere. Row t - 1 scores token t."""
    model = nnx.merge(graphdef, params)
    hidden_BTD = model.hidden(*(batch[name] for name in TOKENS))
    row_BS1 = jnp.maximum(batch["column_BS"] - 1, 0)[..., None]
    hidden_BSD = jnp.take_along_axis(hidden_BTD, row_BS1, axis=1)
    B, S, D = hidden_BSD.shape
    head_VD = model.head_VD
    out = token_logprobs(
        hidden_BSD.reshape(B * S, D),
        head_VD,
        batch["target_BS"].reshape(B * S),
        temperature=batch.get("temperature", execution.temperature),
        keep_X=keep_BS.reshape(B * S),
        tiles=execution.tiles,
        shards=execution.head_shards(head_VD.shape[0]),
        train_head=train_head,
    )
    value_BS = critic.values(model, hidden_BSD)
    if value_BS is not None:
        value_BS = jnp.where(keep_BS, value_BS, 0.0)
    logprob_BS, entropy_BS, best_BS = (x.reshape(B, S) for x in (out.logprob_X, out.entropy_X, out.best_X))
    return Scores(logprob_BS, entropy_BS, value_BS, best_BS)
