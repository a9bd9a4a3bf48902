"""Optimisers and schedules, all counted in optimiser steps (never in batches or micro-batches)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers

from jaxagent.errors import ConfigError
from jaxagent.learn.state import path_name
from jaxagent.model.critic import PREFIX


@dataclass(frozen=True)
class OptimizerSpec:
    """name: adamw | muon.   schedule: constant | linear | cosine, after `warmup` linear steps.

    total_steps: optimiser steps of the whole stage, needed by linear and cosine, which end at
    `final` x learning_rate.   max_grad_norm: 0 is off.
    adam_learning_rate: with muon, the rate of what is not a matrix; the same if None.
    critic_learning_rate: of the value head; the same if None.
    """

    learning_rate: float
    name: str = "adamw"
    schedule: str = "constant"
    warmup: int = 0
    total_steps: int = 0
    final: float = 0.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    max_grad_norm: float = 1.0
    adam_learning_rate: float | None = None
    critic_learning_rate: float | None = None


def make_schedule(spec: OptimizerSpec) -> optax.Schedule:
    """Step -> learning rate. Step 0 of a warm-up of n uses rate / n, so that no step is wasted at rate 0."""
    if spec.schedule not in DECAYS:
        raise ConfigError(f"schedule {spec.schedule!r} is unknown; known: {', '.join(DECAYS)}")
    if spec.learning_rate < 0 or spec.warmup < 0:
        raise ConfigError(
            f"learning_rate={spec.learning_rate}, warmup={spec.warmup}: neither may be negative"
        )
    if spec.schedule != "constant" and spec.total_steps <= spec.warmup:
        raise ConfigError(
            f"schedule {spec.schedule!r} has {spec.total_steps} optimiser steps, {spec.warmup} of them "
            "warm-up, so nothing is left to decay over; lower warmup_steps, raise iterations, or use schedule: "
            "constant"
        )
    rest = DECAYS[spec.schedule](spec, max(spec.total_steps - spec.warmup, 1))
    if not spec.warmup:
        return rest
    first = spec.learning_rate / spec.warmup
    ramp = optax.linear_schedule(first, spec.learning_rate, max(spec.warmup - 1, 1))
    return optax.join_schedules([ramp, rest], [spec.warmup])


DECAYS: Mapping[str, Callable[[OptimizerSpec, int], optax.Schedule]] = {
    "constant": lambda spec, steps: optax.constant_schedule(spec.learning_rate),
    "linear": lambda spec, steps: optax.linear_schedule(
        spec.learning_rate, spec.learning_rate * spec.final, steps
    ),
    "cosine": lambda spec, steps: optax.cosine_decay_schedule(spec.learning_rate, steps, spec.final),
}


def make_optimizer(spec: OptimizerSpec) -> optax.GradientTransformation:
    """clip by global norm -> optimiser, on the trained part of the parameters (None leaves are absent)."""
    if spec.name not in OPTIMIZERS:
        raise ConfigError(f"optimizer {spec.name!r} is unknown; known: {', '.join(OPTIMIZERS)}")
    inner = OPTIMIZERS[spec.name](spec, make_schedule(spec))
    if spec.critic_learning_rate is not None:
        inner = optax.chain(inner, _scaled(PREFIX, spec.critic_learning_rate / spec.learning_rate))
    return optax.chain(optax.clip_by_global_norm(spec.max_grad_norm), inner) if spec.max_grad_norm else inner


def _scaled(prefix: str, factor: float) -> optax.GradientTransformation:
    """Updates of the leaves below `prefix` times a factor: a learning rate of their own, on the same schedule."""

    def scale(updates: Any, params: Any = None) -> Any:
        del params
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: leaf * factor if path_name(path).startswith(prefix) else leaf, updates
        )

    return optax.stateless(scale)


def _adamw(spec: OptimizerSpec, schedule: optax.Schedule) -> optax.GradientTransformation:
    decay = optax.add_decayed_weights(spec.weight_decay, _decays) if spec.weight_decay else optax.identity()
    return optax.chain(_adam(*spec.betas, spec.eps), decay, optax.scale_by_learning_rate(schedule))


def _adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """optax.scale_by_adam with its state, moments finished before they are read: the compiler otherwise
    recomputes them from the old ones, which must then be kept beside the new (one more copy of the model)."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        count = optax.safe_increment(state.count)
        mu = jax.tree.map(lambda g, m: b1 * m + (1 - b1) * g, updates, state.mu)
        nu = jax.tree.map(lambda g, n: b2 * n + (1 - b2) * g * g, updates, state.nu)
        mu, nu = jax.lax.optimization_barrier((mu, nu))
        first, second = 1 - b1**count, 1 - b2**count
        updates = jax.tree.map(lambda m, n: (m / first) / (jnp.sqrt(n / second) + eps), mu, nu)
        return updates, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(optax.scale_by_adam(b1, b2, eps).init, update)


def _muon(spec: OptimizerSpec, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Muon on the matrices inside the layers, AdamW on embedding, head, norms and biases."""
    b1, b2 = spec.betas
    rate = spec.adam_learning_rate
    scale = 1.0 if rate is None else rate / spec.learning_rate
    return optax.contrib.muon(
        schedule,
        weight_decay=spec.weight_decay,
        adam_b1=b1,
        adam_b2=b2,
        adam_learning_rate=lambda step: scale * schedule(step),
        muon_weight_dimension_numbers=_matrices,
    )


OPTIMIZERS: Mapping[str, Callable[[OptimizerSpec, optax.Schedule], optax.GradientTransformation]] = {
    "adamw": _adamw,
    "muon": _muon,
}


def _is_vector(name: str) -> bool:
    """Norm gains and biases, stacked [L, …] or not."""
    return name.rsplit("/", 1)[-1].endswith(("norm", "bias"))


def _decays(params: Any) -> Any:
    """True where weight decay applies: everything but norms and biases."""
    return jax.tree_util.tree_map_with_path(lambda path, _: not _is_vector(path_name(path)), params)


def _matrices(params: Any) -> Any:
    """Muon's dimension numbers: the last two axes of stacked matrices [L, …, in, out]; None for the rest."""

    def kind(path: tuple, leaf: Any) -> MuonDimensionNumbers | None:
        name = path_name(path)
        stacked = name.startswith(("layers/", "lora/")) and leaf.ndim >= 3
        if not stacked or _is_vector(name):
            return None
        return MuonDimensionNumbers(reduction_axis=leaf.ndim - 2, output_axis=leaf.ndim - 1)

    return jax.tree_util.tree_map_with_path(kind, params)
