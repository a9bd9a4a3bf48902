"""The device mesh of a run: four axes, sizes checked against the devices that exist."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from jaxagent.errors import ConfigError
from jaxagent.mesh.rules import AXES


@dataclass(frozen=True)
class MeshSpec:
    """Devices per axis; at most one may be -1, "what is left". `data` spans slices, `fsdp` shards parameters
    and rows, `tensor` heads and hidden units, `context` the tokens of a row."""

    data: int = 1
    fsdp: int = -1
    tensor: int = 1
    context: int = 1

    def shape(self, devices: int) -> tuple[int, int, int, int]:
        """Sizes in the order of rules.AXES, for this many devices."""
        sizes = [self.data, self.fsdp, self.tensor, self.context]
        wanted = ", ".join(f"{name}={size}" for name, size in zip(AXES, sizes))
        if sizes.count(-1) > 1 or any(size < 1 and size != -1 for size in sizes):
            raise ConfigError(f"mesh {wanted}: sizes are at least 1; one of them may be -1 (what is left)")
        fixed = math.prod(size for size in sizes if size != -1)
        if devices % fixed or (-1 not in sizes and fixed != devices):
            raise ConfigError(f"mesh {wanted} takes {fixed} devices or a multiple, there are {devices}")
        data, fsdp, tensor, context = (devices // fixed if size == -1 else size for size in sizes)
        return data, fsdp, tensor, context


def make_mesh(spec: MeshSpec, devices: Sequence[Any] | None = None) -> Mesh:
    """Mesh with axes data, fsdp, tensor, context. Neighbours on the chip network get the inner axes; several
    TPU slices are spread over `data`, because only that axis can bear the slow network between them."""
    devices = list(devices) if devices is not None else jax.devices()
    shape = spec.shape(len(devices))
    slices = len({getattr(device, "slice_index", 0) for device in devices})
    if slices > 1:
        if shape[0] % slices:
            raise ConfigError(f"mesh data={shape[0]} must be a multiple of the {slices} TPU slices")
        grid = mesh_utils.create_hybrid_device_mesh(
            (shape[0] // slices, *shape[1:]),
            (slices, 1, 1, 1),
            devices=devices,
            allow_split_physical_axes=True,
        )
    elif devices[0].platform == "tpu":
        grid = mesh_utils.create_device_mesh(shape, devices=devices, allow_split_physical_axes=True)
    else:
        grid = np.array(devices).reshape(shape)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))
