"""The value head comes and goes: nothing of it reaches the decoder or an export."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxagent.decode.handoff import hand_off
from jaxagent.errors import ConfigError
from jaxagent.export import export_model
from jaxagent.model.critic import add_critic, critic_shapes, values, without_critic
from jaxagent.model.hf import load_hf
from jaxagent.model.lora import add_lora
from jaxagent.model.params import flat
from jaxagent.model.spec import CriticSpec, LoraSpec
from tests.learn import cases

CRITIC = CriticSpec(hidden=(3072, 2048), detach=True)


SMALL = CriticSpec((8, 4))


def headed(critic=SMALL):
    return add_critic(cases.model()[0], cases.params(), critic, seed=0)


def test_shapes_of_the_paper():
    assert critic_shapes(5120, CRITIC) == {
        "hidden0": (5120, 3072),
        "hidden0_bias": (3072,),
        "hidden1": (3072, 2048),
        "hidden1_bias": (2048,),
        "out": (2048,),
        "out_bias": (),
    }
    assert critic_shapes(16, CriticSpec()) == {"out": (16,), "out_bias": ()}


def test_the_value_is_that_of_the_formula_in_float32():
    graphdef, params = headed(CriticSpec((3,)))
    params = jax.tree.map(lambda leaf: leaf + 0.5, params)
    leaves = flat(params)
    hidden = jax.random.normal(jax.random.key(0), (2, 5, 16)).astype(jnp.bfloat16)
    found = values(nnx.merge(graphdef, params), hidden)
    h = np.asarray(hidden, np.float64)
    inner = np.maximum(
        h @ np.asarray(leaves["critic/hidden0"]) + np.asarray(leaves["critic/hidden0_bias"]), 0
    )
    expected = inner @ np.asarray(leaves["critic/out"]) + float(leaves["critic/out_bias"])
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=2e-5)


def test_adding_and_dropping_a_head_leaves_the_rest_to_the_bit():
    graphdef, params = headed()
    assert all(leaf.dtype == jnp.float32 for name, leaf in flat(params).items() if name.startswith("critic/"))
    back, rest = without_critic(graphdef, params)
    assert back == cases.model()[0]
    for name, leaf in flat(cases.params()).items():
        np.testing.assert_array_equal(flat(rest)[name], leaf)
    assert without_critic(back, rest)[1] is rest
    with pytest.raises(ConfigError, match="already has a value head"):
        add_critic(graphdef, params, CRITIC, seed=0)
    with pytest.raises(ConfigError, match="needs a width of at least 1"):
        CriticSpec((8, 0))


def test_the_decoder_gets_the_same_weights():
    graphdef, params = add_lora(*headed(), LoraSpec(rank=2, alpha=4.0), seed=1)
    plain = add_lora(cases.model()[0], cases.params(), LoraSpec(rank=2, alpha=4.0), seed=1)
    with_head, checksum = hand_off(graphdef, params, dtype=jnp.float32)
    without, expected = hand_off(*plain, dtype=jnp.float32)
    assert checksum == expected
    assert len(jax.tree.leaves(with_head)) == len(jax.tree.leaves(without))


def test_an_export_has_no_head_and_loads(tmp_path):
    export_model(tmp_path / "out", *headed())
    spec, params = load_hf(tmp_path / "out")
    assert spec.layers == cases.SPEC.layers
    for name, leaf in flat(cases.params()).items():
        np.testing.assert_array_equal(flat(params)[name], leaf, err_msg=name)
    assert not any(name.startswith("critic") for name in flat(params))
