"""Packed causal attention: a hand-computed case, the splash kernel against the reference, platform errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.errors import ConfigError
from jaxagent.kernels.attention import attend, attend_splash, attend_xla


def inputs(T: int, *, B: int = 1, N: int = 4, K: int = 2, H: int = 64):
    keys = jax.random.split(jax.random.key(0), 4)
    q = jax.random.normal(keys[0], (B, T, N, H))
    k = jax.random.normal(keys[1], (B, T, K, H))
    v = jax.random.normal(keys[2], (B, T, K, H))
    segment = np.ones((B, T), np.int32)
    segment[:, T // 3 :] = 2
    segment[:, T - T // 5 :] = 0
    return q, k, v, jnp.asarray(segment), jax.random.normal(keys[3], (B, T, N, H))


def dense(q, k, v, segment):
    """The definition, with a full [B, N, T, T] score array and repeated key heads."""
    k, v = (jnp.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
    scores = jnp.einsum("btnh,bsnh->bnts", q, k) * q.shape[-1] ** -0.5
    mask = jnp.tril(jnp.ones((1, q.shape[1], q.shape[1]), bool)) & (segment[:, :, None] == segment[:, None])
    return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(jnp.where(mask[:, None], scores, -jnp.inf)), v)


def gradients(function, q, k, v, segment, weight):
    """Gradients of a weighted sum of the outputs of real tokens."""
    weight = weight * (segment > 0)[:, :, None, None]
    return jax.jit(jax.grad(lambda *x: (function(*x, segment) * weight).sum(), argnums=(0, 1, 2)))(q, k, v)


def test_hand_computed():
    """One head of width 2, scores scaled by 2^-0.5: the second token weighs e^(2/√2) : e^0 on values 1 and 3;
    the third is in another segment and sees itself only."""
    q = jnp.array([[[[9.0, 9.0]], [[2.0, 0.0]], [[1.0, 1.0]]]])
    k = jnp.array([[[[1.0, 0.0]], [[0.0, 5.0]], [[1.0, 1.0]]]])
    v = jnp.array([[[[1.0, -1.0]], [[3.0, -3.0]], [[7.0, -7.0]]]])
    out = attend(q, k, v, jnp.array([[1, 1, 2]]))[0, :, 0, 0]
    first = np.exp(2 / np.sqrt(2))
    np.testing.assert_allclose(out, [1.0, (first * 1 + 3) / (first + 1), 7.0], rtol=1e-6)


@pytest.mark.parametrize("T", [250, 1030])
def test_reference_equals_the_definition(T):
    """250 tokens: four query blocks, the last of another length; 1030: recomputed in the backward pass."""
    q, k, v, segment, weight = inputs(T, H=8)
    np.testing.assert_allclose(attend_xla(q, k, v, segment), dense(q, k, v, segment), atol=1e-5)
    got, want = (gradients(function, q, k, v, segment, weight) for function in (attend_xla, dense))
    for one, other in zip(got, want):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_splash_equals_the_reference_with_gradients():
    """250 tokens: the kernel's blocks are of 128, the rest is padding."""
    q, k, v, segment, weight = inputs(250)

    def splash(q, k, v, segment):
        return attend_splash(q, k, v, segment, interpret=True)

    real = np.asarray(segment > 0)
    ours, reference = splash(q, k, v, segment), attend_xla(q, k, v, segment)
    np.testing.assert_allclose(np.asarray(ours)[real], np.asarray(reference)[real], atol=1e-5)
    got, want = (gradients(function, q, k, v, segment, weight) for function in (splash, attend_xla))
    for one, other in zip(got, want):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_splash_off_tpu_raises():
    q, k, v, segment, _ = inputs(48, H=8)
    with pytest.raises(ConfigError, match="'splash' runs on TPU, the platform here is 'cpu'"):
        attend(q, k, v, segment, kernel="splash")
