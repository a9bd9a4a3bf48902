"""What a checkpoint may hold, and whether it fits a run: named leaves, and host state that survives JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxagent.errors import DataError


def named(tree: Any) -> dict[str, Any]:
    """Leaves by their path, e.g. "opt_state/0/mu/layers/q"."""
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in flat}
    if len(named) != len(flat):
        raise DataError("two leaves of the state have the same path; rename one of them")
    return named


def signature(leaf: Any) -> list[Any]:
    """[shape, dtype] as JSON. A Python number is a scalar of its kind."""
    if isinstance(leaf, (bool, int, float)):
        return [[], type(leaf).__name__]
    return [list(leaf.shape), str(leaf.dtype)]


def check_leaves(path: object, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise if the checkpoint is not of this model and optimiser, naming the leaves."""
    problems = [f"{name} is missing" for name in wanted if name not in saved]
    problems += [f"{name} is not part of this run" for name in saved if name not in wanted]
    for name in wanted.keys() & saved.keys():
        (shape, dtype), (want_shape, want_dtype) = saved[name], signature(wanted[name])
        if (shape, dtype) != (want_shape, want_dtype):
            problems.append(f"{name} is {dtype}{shape}, this run needs {want_dtype}{want_shape}")
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise DataError(
            f"checkpoint {path} does not fit this run: {'; '.join(sorted(problems)[:5])}{more}. "
            "Use the model and optimiser it was written with, or another run folder."
        )


def abstract(leaf: Any) -> Any:
    """What Orbax is asked for: the leaf's shape and dtype, on the leaf's devices."""
    if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding or _first_device())
    return np.asarray(leaf)


def _first_device() -> jax.sharding.Sharding:
    return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


def like(value: Any, leaf: Any) -> Any:
    return type(leaf)(value) if isinstance(leaf, (bool, int, float)) else value


def host_json(state: Mapping[str, Any]) -> str:
    _check_json(state, "host_state")
    return json.dumps(state)


def _check_json(value: Any, where: str) -> None:
    """Refuse what JSON would change or lose on the way: other types, and keys that are no strings."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise DataError(f"{where} has the key {key!r}; JSON keys are strings, write str({key!r})")
            _check_json(item, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            _check_json(item, f"{where}[{i}]")
    elif value is not None and type(value) not in (bool, int, float, str):
        raise DataError(
            f"{where} is a {type(value).__name__}; host state holds JSON values only. Convert it, or put "
            "arrays into the device state."
        )
