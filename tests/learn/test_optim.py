"""Schedules in optimiser steps and what each optimiser touches."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagent.errors import ConfigError
from jaxagent.learn.optim import OptimizerSpec, make_optimizer, make_schedule


def rates(count=6, **kw):
    schedule = make_schedule(OptimizerSpec(1.0, **kw))
    return [float(schedule(step)) for step in range(count)]


def test_schedules():
    assert rates() == [1.0] * 6
    assert rates(warmup=4) == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])
    assert rates(warmup=1) == pytest.approx([1.0] * 6)
    assert rates(schedule="linear", total_steps=5) == pytest.approx([1, 0.8, 0.6, 0.4, 0.2, 0])
    assert rates(schedule="linear", total_steps=4, warmup=2) == pytest.approx([0.5, 1, 1, 0.5, 0, 0])
    cosine = rates(schedule="cosine", total_steps=4, final=0.1)
    assert cosine == pytest.approx([0.1 + 0.45 * (1 + np.cos(np.pi * min(t, 4) / 4)) for t in range(6)])


@pytest.mark.parametrize("steps", [0, 3, 5])
def test_a_decay_without_room_is_refused(steps):
    with pytest.raises(ConfigError, match=f"has {steps} optimiser steps, 5 of them warm-up"):
        make_schedule(OptimizerSpec(1.0, schedule="cosine", warmup=5, total_steps=steps))


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match="known: constant, linear, cosine"):
        make_schedule(OptimizerSpec(1.0, schedule="poly"))
    with pytest.raises(ConfigError, match="known: adamw, muon"):
        make_optimizer(OptimizerSpec(1.0, name="sgd"))


PARAMS = {
    "embed": jnp.ones((6, 4)),
    "layers": {"q": jnp.ones((2, 4, 4)), "attn_norm": jnp.ones((2, 4)), "q_bias": jnp.ones((2, 4))},
}


def step(spec, grads, params=PARAMS):
    optimizer = make_optimizer(spec)
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    return updates


def test_weight_decay_spares_norms_and_biases():
    zero = {"embed": jnp.zeros((6, 4)), "layers": {k: jnp.zeros_like(v) for k, v in PARAMS["layers"].items()}}
    moved = step(OptimizerSpec(0.1, weight_decay=0.5), zero)
    np.testing.assert_allclose(moved["layers"]["q"], -0.05, rtol=1e-6)
    np.testing.assert_allclose(moved["embed"], -0.05, rtol=1e-6)
    assert not np.asarray(moved["layers"]["attn_norm"]).any()
    assert not np.asarray(moved["layers"]["q_bias"]).any()


def test_gradients_are_clipped_by_their_global_norm():
    spec = OptimizerSpec(1.0, max_grad_norm=1.0)
    grads = {"w": jnp.array([30.0, 40.0])}
    clip = make_optimizer(spec)
    plain = make_optimizer(OptimizerSpec(1.0, max_grad_norm=0.0))
    _, state = clip.update(grads, clip.init(grads), grads)
    _, unclipped = plain.update(grads, plain.init(grads), grads)
    np.testing.assert_allclose(optax.tree.get(state, "mu")["w"], [0.06, 0.08], rtol=1e-5)  # (1 - b1) g
    np.testing.assert_allclose(optax.tree.get(unclipped, "mu")["w"], [3.0, 4.0], rtol=1e-5)


def test_muon_orthogonalises_each_layer_on_its_own():
    rng = np.random.default_rng(0)
    q = rng.normal(size=(2, 4, 4)).astype(np.float32)
    q[1] *= 100.0
    grads = {"embed": jnp.ones((6, 4)), "layers": {**PARAMS["layers"], "q": jnp.asarray(q)}}
    moved = step(OptimizerSpec(0.02, name="muon", adam_learning_rate=0.004, max_grad_norm=0.0), grads)
    for layer in np.asarray(moved["layers"]["q"]):
        singular = np.linalg.svd(layer / 0.02, compute_uv=False)
        assert singular.min() > 0.5
        assert singular.max() < 1.5
    # The rest takes Adam's first step, with Nesterov momentum: b1 (1 - b1) / (1 - b1^2) + 1 times the rate.
    first = -0.004 * (0.9 * 0.1 / (1 - 0.81) + 1)
    for name in ("attn_norm", "q_bias"):
        np.testing.assert_allclose(moved["layers"][name], first, rtol=1e-3)
    np.testing.assert_allclose(moved["embed"], first, rtol=1e-3)


def test_adamw_is_that_of_optax():
    rng = np.random.default_rng(0)
    params = {"w": jnp.asarray(rng.normal(size=(3, 4)), jnp.float32)}
    ours = make_optimizer(OptimizerSpec(1e-2, weight_decay=0.1, betas=(0.8, 0.95), max_grad_norm=0.0))
    theirs = optax.adamw(1e-2, 0.8, 0.95, weight_decay=0.1)
    states = [ours.init(params), theirs.init(params)]
    both = [params, params]
    for _ in range(5):
        grads = {"w": jnp.asarray(rng.normal(size=(3, 4)), jnp.float32)}
        for i, optimizer in enumerate((ours, theirs)):
            updates, states[i] = optimizer.update(grads, states[i], both[i])
            both[i] = optax.apply_updates(both[i], updates)
    np.testing.assert_allclose(both[0]["w"], both[1]["w"], atol=1e-6)
