"""Logical axis names -> mesh axes: the only place where the two meet.

Model code says what a dimension is ("heads", "batch"); this table says over which mesh axes it is split.
Without an ambient mesh (`jax.set_mesh`) `constrain` does nothing, so the same model code runs on one device.
A dimension that its mesh axes do not divide stays whole along the offending axis: placement may change,
results may not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Shaped

DATA, FSDP, TENSOR, CONTEXT = AXES = ("data", "fsdp", "tensor", "context")

RULES: Mapping[str, tuple[str, ...]] = {
    # activations
    "batch": (DATA, FSDP),
    "sequence": (CONTEXT,),
    "residual": (CONTEXT, TENSOR),  # token axis of the residual between blocks (sequence parallel)
    "slots": (DATA, FSDP),  # decoder slots
    # activations and parameters
    "heads": (TENSOR,),
    "kv_heads": (TENSOR,),
    "mlp": (TENSOR,),
    "vocab": (TENSOR,),
    # parameters
    "embed": (FSDP,),
    "layers": (),
    "experts": (),
    "rank": (),
}

Axis = str | None


def partition(axes: Sequence[Axis], shape: Sequence[int], mesh: Mesh | AbstractMesh) -> PartitionSpec:
    """PartitionSpec of an array whose dimensions are called `axes`. A mesh axis is used at most once."""
    if len(axes) != len(shape):
        raise ValueError(
            f"axes {tuple(axes)} name {len(axes)} dimensions, the array has shape {tuple(shape)}"
        )
    used: set[str] = set()
    entries: list[tuple[str, ...] | None] = []
    for axis, size in zip(axes, shape):
        taken: list[str] = []
        pieces = 1
        for name in RULES[axis] if axis else ():
            if name in mesh.shape and name not in used and size % (pieces * mesh.shape[name]) == 0:
                taken.append(name)
                pieces *= mesh.shape[name]
        used |= set(taken)
        entries.append(tuple(taken) or None)
    return PartitionSpec(*entries)


def sharding(axes: Sequence[Axis], shape: Sequence[int], mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, partition(axes, shape, mesh))


def constrain(x: Shaped[Array, "..."], *axes: Axis) -> Shaped[Array, "..."]:
    """Ask for this layout under the ambient mesh; the identity where there is none."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return x
    return jax.lax.with_sharding_constraint(x, partition(axes, x.shape, mesh))


def platform() -> str:
    """Platform of the current computation: the ambient mesh's (maybe compile-only), else JAX's default."""
    mesh = jax.sharding.get_abstract_mesh()
    device = None if mesh.empty else mesh.abstract_device
    if device is not None and device.platform is not None:
        return device.platform
    return jax.default_backend()
