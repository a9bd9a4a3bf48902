"""The streamed log-probs against dense softmax, values and gradients; shards; rows that do not count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxagent.kernels.logprob import HeadShards, Tiles, token_logprobs

X, D, V = 24, 8, 74  # 74 = 2 x 37: tiles of 16 are ragged, a wish for 32 becomes 37


def case(dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(0), 4)
    hidden_XD = jax.random.normal(keys[0], (X, D)).astype(dtype)
    head_VD = jax.random.normal(keys[1], (V, D))
    target_X = jax.random.randint(keys[2], (X,), 0, V)
    weight_3X = jax.random.normal(keys[3], (3, X))
    return hidden_XD, head_VD, target_X, weight_3X


def dense(hidden_XD, head_VD, target_X, temperature=1.0):
    logit_XV = hidden_XD.astype(jnp.float32) @ head_VD.T / temperature
    logp_XV = jax.nn.log_softmax(logit_XV)
    logprob_X = jnp.take_along_axis(logp_XV, target_X[:, None], axis=1)[:, 0]
    return logprob_X, -(jnp.exp(logp_XV) * logp_XV).sum(-1), jax.nn.logsumexp(logit_XV, -1)


def weighted(fn, weight_3X):
    return lambda hidden_XD, head_VD, *rest, **kw: sum(
        (w * v).sum() for w, v in zip(weight_3X, fn(hidden_XD, head_VD, *rest, **kw))
    )


@pytest.mark.parametrize("tiles", [Tiles(7, 16), Tiles(24, 0), Tiles(8, 32)])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_equal_the_dense_softmax(tiles, temperature):
    hidden_XD, head_VD, target_X, weight_3X = case()
    kw = {"temperature": temperature}
    for got, want in zip(
        token_logprobs(hidden_XD, head_VD, target_X, tiles=tiles, **kw),
        dense(hidden_XD, head_VD, target_X, **kw),
    ):
        np.testing.assert_allclose(got, want, atol=2e-5)
    best_X = token_logprobs(hidden_XD, head_VD, target_X, tiles=tiles, **kw).best_X
    logit_XV = hidden_XD @ head_VD.T / temperature
    np.testing.assert_allclose(best_X, jax.nn.log_softmax(logit_XV).max(-1), atol=2e-5)
    assert not jax.grad(lambda h: token_logprobs(h, head_VD, target_X, tiles=tiles, **kw).best_X.sum())(
        hidden_XD
    ).any()
    got = jax.grad(weighted(token_logprobs, weight_3X), (0, 1))(
        hidden_XD, head_VD, target_X, tiles=tiles, **kw
    )
    want = jax.grad(weighted(dense, weight_3X), (0, 1))(hidden_XD, head_VD, target_X, **kw)
    for g, w in zip(got, want):
        np.testing.assert_allclose(g, w, atol=3e-5)


def test_entropy_of_a_known_distribution():
    # H(.5, .3, .2) = 1.029653
    hidden_XD = jnp.ones((1, 1))
    head_VD = jnp.log(jnp.array([[0.5], [0.3], [0.2]]))
    out = token_logprobs(hidden_XD, head_VD, jnp.array([1]))
    np.testing.assert_allclose(out.entropy_X, [1.029653], atol=1e-6)
    np.testing.assert_allclose(out.logprob_X, [np.log(0.3)], atol=1e-6)
    np.testing.assert_allclose(out.logsumexp_X, [0.0], atol=1e-6)
    np.testing.assert_allclose(out.best_X, [np.log(0.5)], atol=1e-6)


def test_huge_logits_stay_finite():
    hidden_XD, head_VD, target_X, weight_3X = case()
    grads = jax.grad(weighted(token_logprobs, weight_3X), (0, 1))(
        hidden_XD * 1e3, head_VD, target_X, tiles=Tiles(8, 32)
    )
    assert all(np.isfinite(g).all() for g in grads)


def test_rows_outside_keep_are_zero_and_get_no_gradient():
    hidden_XD, head_VD, target_X, weight_3X = case()
    keep_X = jnp.asarray(np.random.default_rng(0).random(X) < 0.4)
    out = token_logprobs(hidden_XD, head_VD, target_X, keep_X=keep_X, tiles=Tiles(4, 32))
    full = dense(hidden_XD, head_VD, target_X)
    for got, want in zip(out, full):
        np.testing.assert_allclose(got, jnp.where(keep_X, want, 0.0), atol=2e-5)
    kept = jnp.where(keep_X[None], weight_3X, 0.0)
    loss = weighted(token_logprobs, weight_3X)
    d_hidden, d_head = jax.grad(loss, (0, 1))(hidden_XD, head_VD, target_X, keep_X=keep_X, tiles=Tiles(4, 32))
    w_hidden, w_head = jax.grad(weighted(dense, kept), (0, 1))(hidden_XD, head_VD, target_X)
    np.testing.assert_allclose(d_hidden, w_hidden, atol=3e-5)
    np.testing.assert_allclose(d_head, w_head, atol=3e-5)
    assert not np.asarray(d_hidden)[~np.asarray(keep_X)].any()


def test_poisoned_rows_outside_keep_do_not_leak():
    hidden_XD, head_VD, target_X, _ = case()
    keep_X = jnp.arange(X) % 2 == 0
    poisoned_XD = jnp.where(keep_X[:, None], hidden_XD, jnp.nan)

    def loss(hidden_XD, head_VD):
        out = token_logprobs(hidden_XD, head_VD, target_X, keep_X=keep_X, tiles=Tiles(12, 32))
        return out.logprob_X.sum()

    want = jax.grad(loss, (0, 1))(hidden_XD, head_VD)
    got = jax.grad(loss, (0, 1))(poisoned_XD, head_VD)
    assert all(np.array_equal(g, w) for g, w in zip(got, want))


def test_a_traced_temperature_equals_a_fixed_one_and_compiles_once():
    hidden_XD, head_VD, target_X, weight_3X = case()
    loss = weighted(token_logprobs, weight_3X)
    traced = []

    def both(hidden_XD, head_VD, temperature):
        traced.append(temperature)
        grad = jax.value_and_grad(loss, (0, 1))
        return grad(hidden_XD, head_VD, target_X, tiles=Tiles(7, 16), temperature=temperature)

    heated = jax.jit(both)
    for temperature in (0.7, 1.0, 1.2):
        value, grads = heated(hidden_XD, head_VD, jnp.float32(temperature))
        expected, wanted = both(hidden_XD, head_VD, temperature)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
        for got, want in zip(grads, wanted):
            np.testing.assert_allclose(got, want, atol=3e-5)
    assert len(traced) == 1 + 3


def test_temperatures_of_a_known_distribution():
    head_VD, one = jnp.array([[2.0], [1.0], [0.0]]), jnp.ones((3, 1))
    expected = {
        0.5: [0.866813, 0.11731, 0.015876],
        1.0: [0.665241, 0.244728, 0.090031],
        2.0: [0.50648, 0.307196, 0.186324],
    }
    for temperature, probs in expected.items():
        for given in (temperature, jnp.float32(temperature)):
            out = token_logprobs(one, head_VD, jnp.arange(3), temperature=given)
            np.testing.assert_allclose(np.exp(out.logprob_X), probs, atol=1e-6)


def test_frozen_head_gets_no_gradient():
    hidden_XD, head_VD, target_X, weight_3X = case()
    loss = weighted(token_logprobs, weight_3X)
    frozen = jax.grad(loss, (0, 1))(hidden_XD, head_VD, target_X, train_head=False)
    full = jax.grad(loss, (0, 1))(hidden_XD, head_VD, target_X)
    np.testing.assert_allclose(frozen[0], full[0], atol=1e-6)
    assert not np.asarray(frozen[1]).any()


def test_bfloat16_hidden_states_accumulate_in_float32():
    hidden_XD, head_VD, target_X, _ = case(jnp.bfloat16)
    out = token_logprobs(hidden_XD, head_VD, target_X, tiles=Tiles(8, 32))
    want = dense(hidden_XD, head_VD.astype(jnp.bfloat16).astype(jnp.float32), target_X)
    assert out.logprob_X.dtype == jnp.float32
    for got, expected in zip(out, want):
        np.testing.assert_allclose(got, expected, atol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, jnp.float32(0.7)], ids=["fixed", "traced"])
@pytest.mark.parametrize("vocab", [None, "tensor"])
def test_shards_change_nothing(vocab, temperature):
    hidden_XD, head_VD, target_X, weight_3X = case()
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("fsdp", "tensor"))
    shards = HeadShards(mesh, ("fsdp",), vocab)
    keep_X = jnp.arange(X) % 5 != 0
    kw = {"keep_X": keep_X, "tiles": Tiles(4, 16), "temperature": temperature}

    def both(hidden_XD, head_VD, shards=None):
        loss = weighted(token_logprobs, weight_3X)
        return jax.value_and_grad(loss, (0, 1))(hidden_XD, head_VD, target_X, shards=shards, **kw)

    plain, split = (
        token_logprobs(hidden_XD, head_VD, target_X, shards=over, **kw).best_X for over in (None, shards)
    )
    np.testing.assert_allclose(split, plain, atol=1e-5)
    one = both(hidden_XD, head_VD)
    many = jax.jit(lambda h, w: both(h, w, shards))(hidden_XD, head_VD)
    np.testing.assert_allclose(many[0], one[0], rtol=1e-5)
    for got, want in zip(many[1], one[1]):
        np.testing.assert_allclose(got, want, atol=3e-5)


def test_no_array_of_all_logits_exists():
    # 512 x 4096 float32 logits are 8 MiB; tiles of 64 x 256 and the gradient of the head are far below.
    hidden_XD, head_VD, target_X = jnp.ones((512, 8)), jnp.ones((4096, 8)), jnp.zeros(512, jnp.int32)

    def loss(hidden_XD, head_VD):
        return token_logprobs(hidden_XD, head_VD, target_X, tiles=Tiles(64, 256)).logprob_X.sum()

    memory = jax.jit(jax.grad(loss, (0, 1))).lower(hidden_XD, head_VD).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 2**20


def test_temperature_zero_is_refused():
    hidden_XD, head_VD, target_X, _ = case()
    with pytest.raises(ValueError, match="temperature"):
        token_logprobs(hidden_XD, head_VD, target_X, temperature=0.0)
