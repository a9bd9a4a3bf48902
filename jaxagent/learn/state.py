"""What training carries from step to step, and which parameters it may change."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from jaxagent.errors import ConfigError
from jaxagent.learn.outliers import no_norms
from jaxagent.model.params import shardings

Params = Any  # a pytree of arrays, such as nnx.split(model)[1]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["params", "opt_state", "step", "version", "skipped", "norms"],
    meta_fields=[],
)
@dataclass(frozen=True)
class TrainState:
    """params: every parameter, float32 masters.   opt_state: of the trainable part only.

    step: optimiser steps taken (position of the schedule).   version: policy version, +1 with each step.
    skipped: micro-batches thrown away because their loss or gradient was not finite.
    norms: running moments of the gradient norms (outliers.py).
    """

    params: Params
    opt_state: optax.OptState
    step: Any  # int32 []; Any because JAX also rebuilds the record around shapes and shardings
    version: Any
    skipped: Any
    norms: Any  # float32 [3]


@dataclass(frozen=True)
class Partition:
    """Which part of the parameters is trained: `split(params)` -> (trained, rest), `merge` undoes it.

    Only the trained part gets gradients and optimiser state; leaves of the other side are None.
    """

    split: Callable[[Params], tuple[Params, Params]]
    merge: Callable[[Params, Params], Params]


def path_name(path: tuple) -> str:
    """`layers/q`: the names along a pytree path, without the `.value` of a Flax variable."""
    names = [
        str(getattr(entry, "key", getattr(entry, "name", getattr(entry, "idx", entry)))) for entry in path
    ]
    return "/".join(name for name in names if name != "value")


def train_all() -> Partition:
    return train_only(lambda name: True)


def train_only(chosen: Callable[[str], bool]) -> Partition:
    """Train the leaves whose path name is chosen, e.g. `lambda name: name.startswith("lora/")`."""

    def split(params: Params) -> tuple[Params, Params]:
        flags = jax.tree_util.tree_map_with_path(lambda path, _: bool(chosen(path_name(path))), params)
        if not any(jax.tree.leaves(flags)):
            names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
            raise ConfigError(f"no parameter is trainable; the model has {', '.join(names)}")
        trained = jax.tree.map(lambda flag, leaf: leaf if flag else None, flags, params)
        return trained, jax.tree.map(lambda flag, leaf: None if flag else leaf, flags, params)

    return Partition(split, _choose)


def train_last_layers(count: int, *, stacked: str = r"^layers/") -> Partition:
    """Train the last `count` slices of every stacked leaf [L, …] and nothing else."""
    pattern = re.compile(stacked)

    def split(params: Params) -> tuple[Params, Params]:
        def part(trained: bool, path: tuple, leaf: Array) -> Array | None:
            if not pattern.search(path_name(path)):
                return None if trained else leaf
            if not 0 < count <= leaf.shape[0]:
                raise ConfigError(f"cannot train the last {count} of {leaf.shape[0]} layers")
            return leaf[-count:] if trained else leaf[: leaf.shape[0] - count]

        walk = jax.tree_util.tree_map_with_path
        return walk(partial(part, True), params), walk(partial(part, False), params)

    def merge(trained: Params, rest: Params) -> Params:
        def join(new: Array | None, old: Array) -> Array:
            return old if new is None else jnp.concatenate([old, new])

        return jax.tree.map(join, trained, rest, is_leaf=lambda leaf: leaf is None)

    return Partition(split, merge)


def train_also(partition: Partition, chosen: Callable[[str], bool]) -> Partition:
    """What `partition` trains, and the leaves whose path name is chosen, e.g. a value head's."""

    def flags(params: Params) -> Params:
        return jax.tree_util.tree_map_with_path(lambda path, _: bool(chosen(path_name(path))), params)

    def split(params: Params) -> tuple[Params, Params]:
        trained, rest = partition.split(params)
        picked = flags(params)
        trained = jax.tree.map(lambda flag, leaf, part: leaf if flag else part, picked, params, trained)
        return trained, jax.tree.map(lambda flag, part: None if flag else part, picked, rest)

    def merge(trained: Params, rest: Params) -> Params:
        def absent(leaf: Any) -> bool:
            return leaf is None

        def other(path: tuple, leaf: Any) -> Any:
            return None if chosen(path_name(path)) else leaf

        own = jax.tree_util.tree_map_with_path(other, trained, is_leaf=absent)
        filled = jax.tree.map(lambda old, new: new if old is None else old, rest, trained, is_leaf=absent)
        return partition.merge(own, filled)

    return Partition(split, merge)


def _choose(trained: Params, rest: Params) -> Params:
    return jax.tree.map(
        lambda new, old: old if new is None else new, trained, rest, is_leaf=lambda leaf: leaf is None
    )


def init_state(
    params: Params,
    optimizer: optax.GradientTransformation,
    partition: Partition | None = None,
    *,
    mesh: Mesh | None = None,
    version: int = 0,
) -> TrainState:
    """A state at step 0. The state owns `params`: updates donate them.

    mesh: that of `params`; the optimiser's moments are made in the layout of their parameters, never whole on a
    device first. Each scalar has its own buffer, so that all of the state can be donated.
    """
    trained, _ = (partition or train_all()).split(params)
    layout = None if mesh is None else shardings(jax.eval_shape(optimizer.init, trained), mesh)
    opt_state = jax.jit(optimizer.init, out_shardings=layout)(trained)

    def everywhere(value: np.ndarray | np.integer) -> Array:
        array = jnp.asarray(value)
        return array if mesh is None else jax.device_put(array, NamedSharding(mesh, PartitionSpec()))

    step, newest, skipped = (everywhere(np.int32(value)) for value in (0, version, 0))
    return TrainState(params, opt_state, step, newest, skipped, everywhere(no_norms()))


@partial(jax.jit, donate_argnums=0, static_argnums=2)
def averaged(average: Params, params: Params, keep: float) -> Params:
    """keep x average + (1 - keep) x params, in the average's memory. What nobody trains stays the same to the bit."""
    return jax.tree.map(lambda old, new: old + (1.0 - keep) * (new - old), average, params)
