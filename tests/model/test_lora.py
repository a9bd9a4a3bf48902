"""Adapters: silent at first, merged exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxagent.errors import ConfigError
from jaxagent.model.lora import add_lora, merge_lora
from jaxagent.model.params import flat
from jaxagent.model.spec import LoraSpec, ModelSpec
from jaxagent.model.transformer import create

SPEC = ModelSpec(
    family="qwen2", vocab=64, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, mlp=48, qkv_bias=True
)
LORA = LoraSpec(rank=4, alpha=8.0)
TOKEN = jnp.arange(10)[None] * 5 % 64
BATCH = (TOKEN, jnp.arange(10)[None], jnp.ones((1, 10), int))


def hidden(graphdef, params):
    return jax.jit(lambda params: nnx.merge(graphdef, params).hidden(*BATCH))(params)


def adapted(scale: float):
    """A model with adapters whose B is random instead of zero."""
    graphdef, params = add_lora(*create(SPEC, seed=0), LORA, seed=1)
    for i, target in enumerate(LORA.targets):
        leaf = params["lora"][f"{target}_b"]
        noise = jax.random.normal(jax.random.key(i), leaf.shape)
        params["lora"][f"{target}_b"] = leaf.replace(scale * noise)
    return graphdef, params


def test_fresh_adapters_change_nothing():
    base = create(
        SPEC, seed=0, remat="full"
    )  # layers in a loop: unrolled, the compiler rounds the two differently
    with_lora = add_lora(*base, LORA, seed=1)
    np.testing.assert_array_equal(hidden(*with_lora), hidden(*base))
    for name, leaf in flat(base[1]).items():
        np.testing.assert_array_equal(leaf, flat(with_lora[1])[name])


def test_merged_equals_adapted():
    graphdef, params = adapted(0.1)
    plain, merged = merge_lora(graphdef, params)
    assert "lora" not in merged
    assert set(flat(merged)) == set(flat(create(SPEC, seed=0)[1]))
    base = hidden(*create(SPEC, seed=0))
    assert np.abs(hidden(graphdef, params) - base).max() > 0.1
    np.testing.assert_allclose(hidden(plain, merged), hidden(graphdef, params), atol=1e-5)
    delta = merged["layers"]["q"][...] - params["layers"]["q"][...]
    a, b = params["lora"]["q_a"][...], params["lora"]["q_b"][...]
    np.testing.assert_allclose(delta[1], 2.0 * a[1] @ b[1], atol=1e-6)
    again = merge_lora(plain, merged)
    assert again[1] is merged


def test_refusals():
    sizes = {"vocab": 64, "width": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "mlp": 12}
    moe = ModelSpec(family="qwen3_moe", **sizes, qk_norm=True, experts=4, experts_per_token=2)
    with pytest.raises(ConfigError, match=r"lora.targets has 'gate': adapters on expert weights"):
        create(moe, seed=0, lora=LORA)
    with pytest.raises(ConfigError, match="already has adapters"):
        add_lora(*adapted(0.1), LORA, seed=0)
    with pytest.raises(ConfigError, match=r"lora.rank=0"):
        LoraSpec(rank=0, alpha=1.0)
