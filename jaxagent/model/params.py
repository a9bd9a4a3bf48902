"""Parameter pytrees by name: `layers/q`, `embed`, `lora/q_a`. What each name's dimensions are called, and
where they lie.

Works on the nnx.State that `nnx.split` gives, on plain nested dicts, and on trees that contain such trees, as
an optimizer state does; leaves of other names (counters) are kept whole on every device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxagent.mesh.rules import Axis, sharding

AXES: dict[str, tuple[Axis, ...]] = {
    "embed": ("vocab", "embed"),
    "head": ("vocab", "embed"),
    "final_norm": (None,),
    "layers/q": ("layers", "embed", "heads"),
    "layers/k": ("layers", "embed", "kv_heads"),
    "layers/v": ("layers", "embed", "kv_heads"),
    "layers/o": ("layers", "heads", "embed"),
    "layers/q_bias": ("layers", "heads"),
    "layers/k_bias": ("layers", "kv_heads"),
    "layers/v_bias": ("layers", "kv_heads"),
    "layers/o_bias": ("layers", None),
    "layers/gate": ("layers", "embed", "mlp"),
    "layers/up": ("layers", "embed", "mlp"),
    "layers/down": ("layers", "mlp", "embed"),
    "layers/router": ("layers", "embed", None),
    "critic/out": (None,),
    "critic/out_bias": (),
}
GROUPS = ("layers", "lora", "critic")
EXPERT_AXES: dict[str, tuple[Axis, ...]] = {
    "layers/gate": ("layers", "experts", "embed", "mlp"),
    "layers/up": ("layers", "experts", "embed", "mlp"),
    "layers/down": ("layers", "experts", "mlp", "embed"),
}


def axes_of(name: str, rank: int) -> tuple[Axis, ...] | None:
    """Logical names of a parameter's dimensions; None for a name that is no parameter."""
    if name.startswith("lora/"):
        target, side = name.removeprefix("lora/").rsplit("_", 1)
        layers, inner, outer = AXES[f"layers/{target}"]
        return (layers, inner, "rank") if side == "a" else (layers, "rank", outer)
    if name.startswith("critic/hidden"):
        return ("embed", "mlp") if rank == 2 else ("mlp",)
    if name.startswith("layers/") and name.endswith("_norm"):
        return ("layers", None)
    table = EXPERT_AXES if rank == 4 else AXES
    return table.get(name)


def name_of(path: tuple[Any, ...]) -> str:
    """`layers/q` of a key path; keys of enclosing trees (an optimizer's fields and indices) are left out."""
    keys = [str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey)]
    for start in range(len(keys)):
        if keys[start] in GROUPS and start == len(keys) - 2:
            return "/".join(keys[start:])
    return keys[-1] if keys else ""


def flat(params: Any) -> dict[str, Any]:
    """Name -> leaf, in tree order."""
    return {name_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def map_named(function: Callable[[str, Any], Any], params: Any) -> Any:
    """The same tree with `function(name, leaf)` in place of each leaf."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: function(name_of(path), leaf), params)


def shardings(params: Any, mesh: Mesh) -> Any:
    """Tree of NamedSharding for parameters, gradients or optimizer states (arrays or ShapeDtypeStruct)."""

    def place(name: str, leaf: Any) -> NamedSharding:
        axes = axes_of(name, len(leaf.shape))
        if axes is None or len(axes) != len(leaf.shape):
            return NamedSharding(mesh, PartitionSpec())
        return sharding(axes, leaf.shape, mesh)

    return map_named(place, params)


def place(params: Any, mesh: Mesh) -> Any:
    """`params` laid out over the mesh by the rules."""
    return jax.device_put(params, shardings(params, mesh))
