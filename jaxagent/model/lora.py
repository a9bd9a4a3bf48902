"""Low-rank adapters: add them to a model, merge them exactly. (Training only them: learn/state.py.)

With adapters y = x W + (alpha / rank) (x A) B; A starts random, B at zero, so adding adapters changes no
output and the base stays the one that was loaded.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxagent.errors import ConfigError
from jaxagent.model.spec import LoraSpec
from jaxagent.model.transformer import Layers, LoraParam, Transformer, lora_shapes


def add_lora(
    graphdef: nnx.GraphDef, params: Any, lora: LoraSpec, *, seed: int
) -> tuple[nnx.GraphDef, nnx.State]:
    """The same model with fresh adapters in every layer: A ~ N(0, 1/in), B = 0, stored in float32."""
    model: Transformer = nnx.merge(graphdef, params)
    if model.lora_spec:
        raise ConfigError("this model already has adapters; merge them first")
    values = {}
    keys = iter(jax.random.split(jax.random.key(seed), len(lora.targets)))
    for name, shape in lora_shapes(model.spec, lora).items():
        if name.endswith("_a"):
            values[name] = jax.random.normal(next(keys), shape) * shape[1] ** -0.5
        else:
            values[name] = jnp.zeros(shape)
    model.lora_spec = lora
    model.lora = Layers(values, LoraParam)
    return nnx.split(model)


def merge_lora(graphdef: nnx.GraphDef, params: Any) -> tuple[nnx.GraphDef, Any]:
    """The plain model with W + (alpha / rank) A B, summed in float32 and stored in W's dtype."""
    model: Transformer = nnx.merge(graphdef, params)
    if not model.lora_spec:
        return graphdef, params
    for target in model.lora_spec.targets:
        weight = getattr(model.layers, target)
        a, b = (getattr(model.lora, f"{target}_{side}")[...].astype(jnp.float32) for side in "ab")
        # Full precision, whatever the default of the platform: the merged model must equal the adapted one.
        delta = jnp.einsum("lir,lro->lio", a, b, precision=jax.lax.Precision.HIGHEST)
        merged = weight[...].astype(jnp.float32) + model.lora_spec.scale * delta
        setattr(model.layers, target, nnx.Param(merged.astype(weight[...].dtype)))
    del model.lora
    model.lora_spec = None
    return nnx.split(model)
