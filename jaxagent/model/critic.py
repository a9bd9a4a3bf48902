"""The value head: hidden state of the policy's trunk -> the expected return from there on. Added to a model, dropped.

    V = out . relu(... relu(h W0 + b0) ...) + out_bias          no hidden layer: V = out . h + out_bias

All of it is float32. `out` starts at zero, and so does every value. Decoder and exports do without the head.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxagent.errors import ConfigError
from jaxagent.model.spec import CriticSpec
from jaxagent.model.transformer import Layers, Transformer

PREFIX = "critic/"  # of its parameters' names


class CriticParam(nnx.Param):
    """A parameter of the value head."""


def critic_shapes(width: int, critic: CriticSpec) -> dict[str, tuple[int, ...]]:
    """Name -> shape, for hidden states of this width."""
    shapes: dict[str, tuple[int, ...]] = {}
    for i, size in enumerate(critic.hidden):
        shapes |= {f"hidden{i}": (width, size), f"hidden{i}_bias": (size,)}
        width = size
    return shapes | {"out": (width,), "out_bias": ()}


def add_critic(
    graphdef: nnx.GraphDef, params: Any, critic: CriticSpec, *, seed: int
) -> tuple[nnx.GraphDef, nnx.State]:
    """The same model with a fresh head: hidden matrices N(0, 2 / in), which keeps the scale through ReLU."""
    model: Transformer = nnx.merge(graphdef, params)
    if model.critic_spec:
        raise ConfigError("this model already has a value head")
    values = {}
    keys = iter(jax.random.split(jax.random.key(seed), len(critic.hidden) + 1))
    for name, shape in critic_shapes(model.spec.width, critic).items():
        scale = (2.0 / shape[0]) ** 0.5 if len(shape) == 2 else 0.0
        values[name] = scale * jax.random.normal(next(keys), shape) if scale else jnp.zeros(shape)
    model.critic_spec = critic
    model.critic = Layers(values, CriticParam)
    return nnx.split(model)


def without_critic(graphdef: nnx.GraphDef, params: Any) -> tuple[nnx.GraphDef, Any]:
    """The model that acts: without the head, if it has one."""
    model: Transformer = nnx.merge(graphdef, params)
    if not model.critic_spec:
        return graphdef, params
    del model.critic
    model.critic_spec = None
    return nnx.split(model)


def values(model: Transformer, hidden_BSD: Float[Array, "B S D"]) -> Float[Array, "B S"] | None:
    """V of the states whose hidden states are given; None without a head."""
    critic = model.critic_spec
    if critic is None:
        return None
    weights = {name: leaf[...] for name, leaf in nnx.state(model.critic).items()}
    precise = jax.lax.Precision.HIGHEST  # float32 products on every platform: returns differ by little
    x = hidden_BSD.astype(jnp.float32)  # the regression's error is far below bf16's rounding
    x = jax.lax.stop_gradient(x) if critic.detach else x
    for i in range(len(critic.hidden)):
        x = jnp.einsum("bsi,io->bso", x, weights[f"hidden{i}"], precision=precise)
        x = jax.nn.relu(x + weights[f"hidden{i}_bias"][None, None])
    return jnp.einsum("bsi,i->bs", x, weights["out"], precision=precise) + weights["out_bias"]
