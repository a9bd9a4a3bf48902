"""The forward pass: packing, causality, recomputation, layers frozen or not, bf16, and the experts' arithmetic."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxagent.errors import ConfigError
from jaxagent.model.moe import mix
from jaxagent.model.rope import rope_tables, rotate
from jaxagent.model.spec import ModelSpec, Rope
from jaxagent.model.transformer import create
from tests.small_models import DENSE

SPEC = replace(DENSE, layers=3)
MOE = ModelSpec(
    family="qwen3_moe", vocab=64, width=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp=12, qk_norm=True,
    experts=4, experts_per_token=2, norm_topk=True,
)  # fmt: skip


def tokens(T: int = 12):
    token = jnp.asarray(np.random.default_rng(0).integers(0, 64, (1, T)), jnp.int32)
    return token, jnp.arange(T)[None], jnp.ones((1, T), jnp.int32)


def runner(**options):
    graphdef, params = create(SPEC, seed=0, **options)
    return params, jax.jit(lambda params, *batch: nnx.merge(graphdef, params).hidden(*batch))


def test_packed_rows_equal_separate_rows():
    params, hidden = runner()
    token, position, segment = tokens()
    segment = segment.at[0, 7:].set(2)
    position = position.at[0, 7:].add(-7)
    packed = hidden(params, token, position, segment)
    first = hidden(params, token[:, :7], position[:, :7], segment[:, :7])
    second = hidden(params, token[:, 7:], position[:, 7:], segment[:, 7:])
    np.testing.assert_allclose(packed, jnp.concatenate([first, second], 1), atol=1e-5)


def test_a_token_does_not_see_the_future():
    params, hidden = runner()
    token, position, segment = tokens()
    other = token.at[0, 8].set((token[0, 8] + 1) % 64)
    before, after = hidden(params, token, position, segment), hidden(params, other, position, segment)
    np.testing.assert_array_equal(before[0, :8], after[0, :8])
    assert np.abs(before[0, 8:] - after[0, 8:]).max(axis=-1).min() > 1e-3


def gradient(remat: str, fixed_layers: int = 0):
    graphdef, params = create(SPEC, seed=0, remat=remat, fixed_layers=fixed_layers)
    batch = tokens()
    loss = jax.jit(jax.grad(lambda params: jnp.sin(nnx.merge(graphdef, params).hidden(*batch)).sum()))
    return jax.tree.leaves(loss(params))


@pytest.mark.parametrize("remat", ["full", "dots", "attention"])
def test_recomputation_changes_no_gradient(remat):
    for one, other in zip(gradient(remat), gradient("none")):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_no_gradient_runs_through_fixed_layers_and_the_others_keep_theirs():
    _, template = create(SPEC, seed=0)
    for path, whole, cut in zip(
        (path for path, _ in jax.tree_util.tree_leaves_with_path(template)),
        gradient("full"),
        gradient("full", fixed_layers=1),
    ):
        if "layers" in str(path):
            np.testing.assert_array_equal(cut[0], 0)
            np.testing.assert_allclose(cut[1:], whole[1:], atol=1e-4)


@pytest.mark.parametrize("fixed", [-1, 3])
def test_some_layer_is_trained(fixed):
    with pytest.raises(ConfigError, match=f"fixed_layers={fixed} of 3 layers"):
        create(SPEC, seed=0, fixed_layers=fixed)


def test_unknown_remat_is_refused():
    with pytest.raises(ConfigError, match="remat='some' is unknown; known: none, full, dots, attention"):
        gradient("some")


def test_bf16_compute_keeps_float32_parameters_and_stays_close():
    params, hidden = runner()
    params16, hidden16 = runner(dtype=jnp.bfloat16)
    wide, narrow = hidden(params, *tokens()), hidden16(params16, *tokens())
    assert narrow.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(params16)} == {jnp.dtype("float32")}
    np.testing.assert_allclose(narrow.astype(jnp.float32), wide, atol=0.1)


@pytest.mark.parametrize("one_draw", [1 << 26, 10], ids=["one draw", "leaf by leaf"])
def test_initial_values(one_draw, monkeypatch):
    monkeypatch.setattr("jaxagent.model.transformer.ONE_DRAW", one_draw)
    _, params = create(SPEC, seed=0)
    _, other = create(SPEC, seed=1)
    q = params["layers"]["q"][...]
    assert float(q.std()) == pytest.approx(0.02, rel=0.1)
    assert not np.array_equal(q[0], q[1])
    assert not np.array_equal(q, other["layers"]["q"][...])
    np.testing.assert_array_equal(params["layers"]["attn_norm"][...], 1.0)


def test_rotary_by_hand():
    """head_dim 4, theta 100: frequencies 1 and 0.1; position 2 turns (x0, x2) by 2 and (x1, x3) by 0.2."""
    tables = rope_tables(Rope(theta=100.0), 4, jnp.array([[2]]))
    out = rotate(jnp.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 1, 4), tables)[0, 0, 0]
    c, s, d, t = np.cos(2.0), np.sin(2.0), np.cos(0.2), np.sin(0.2)
    np.testing.assert_allclose(out, [1 * c - 3 * s, 2 * d - 4 * t, 3 * c + 1 * s, 4 * d + 2 * t], rtol=1e-6)


def test_experts_equal_the_plain_sum():
    """sum over the two best experts of their share times their MLP, computed one token and expert at a time."""
    _, params = create(MOE, seed=0)
    weights = {name: 20 * leaf[...][0] for name, leaf in params["layers"].items()}
    x = jax.random.normal(jax.random.key(1), (7, 16))
    want = np.zeros((7, 16))
    for token in range(7):
        probs = np.asarray(jax.nn.softmax(x[token] @ weights["router"]))
        best = np.argsort(-probs)[:2]
        for expert in best:
            hidden = jax.nn.silu(x[token] @ weights["gate"][expert]) * (x[token] @ weights["up"][expert])
            want[token] += probs[expert] / probs[best].sum() * np.asarray(hidden @ weights["down"][expert])
    assert np.abs(want).max() > 0.1
    np.testing.assert_allclose(mix(MOE, weights, x), want, atol=1e-5)
