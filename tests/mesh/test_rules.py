"""Mesh sizes, the table of rules, and that a mesh changes where numbers lie, not the numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from jaxagent.errors import ConfigError
from jaxagent.kernels.attention import attend_splash, attend_xla
from jaxagent.mesh.mesh import MeshSpec, make_mesh
from jaxagent.mesh.rules import partition, sharding
from jaxagent.model.params import axes_of, flat, shardings
from jaxagent.model.spec import LoraSpec, ModelSpec
from jaxagent.model.transformer import create
from tests.small_models import DENSE

MOE = ModelSpec(
    family="qwen3_moe", vocab=64, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, mlp=16, qk_norm=True,
    experts=4, experts_per_token=2,
)  # fmt: skip


def test_mesh_sizes():
    assert MeshSpec().shape(8) == (1, 8, 1, 1)
    assert MeshSpec(data=2, tensor=2).shape(8) == (2, 2, 2, 1)
    with pytest.raises(ConfigError, match="takes 3 devices or a multiple, there are 8"):
        MeshSpec(tensor=3).shape(8)
    with pytest.raises(ConfigError, match="takes 4 devices"):
        MeshSpec(fsdp=4).shape(8)
    with pytest.raises(ConfigError, match="one of them may be -1"):
        MeshSpec(data=-1, fsdp=-1).shape(8)


def test_partition():
    mesh = make_mesh(MeshSpec(data=1, fsdp=2, tensor=2, context=2))
    assert partition(("embed", "heads"), (32, 64), mesh) == P("fsdp", "tensor")
    assert partition(("batch", "residual", None), (4, 8, 32), mesh) == P(
        ("data", "fsdp"), ("context", "tensor"), None
    )
    # 3 rows over fsdp=2 and 6 tokens over context x tensor = 4: what does not divide is left whole.
    assert partition(("batch", "residual", None), (3, 6, 32), mesh) == P("data", "context", None)


def test_every_parameter_has_a_rule_and_optimizer_states_follow():
    import optax

    lora = LoraSpec(rank=2, alpha=4.0)
    mesh = make_mesh(MeshSpec(fsdp=4, tensor=2))
    for spec, options in ((DENSE, {"lora": lora}), (MOE, {})):
        _, params = create(spec, seed=0, **options)
        for name, leaf in flat(params).items():
            axes = axes_of(name, leaf.ndim)
            assert axes is not None, name
            assert len(axes) == leaf.ndim, name
    _, params = create(DENSE, seed=0)
    state = optax.adam(1e-3).init(params)
    places = [str(x.spec) for x in jax.tree.leaves(shardings(params, mesh))]
    moments = [str(x.spec) for x in jax.tree.leaves(shardings(state, mesh))]
    assert moments == [str(P()), *places, *places]
    assert sum("fsdp" in place for place in places) == 8


def packed(B: int = 4, T: int = 16):
    token = np.random.default_rng(0).integers(0, 64, (B, T))
    segment = np.ones((B, T), int)
    segment[:, 9:] = 2
    segment[1:, 14:] = 0
    position = np.tile(np.arange(T), (B, 1))
    position[:, 9:] -= 9
    return {"token": token, "position": position, "segment": segment}


def loss_and_gradient(spec, mesh_spec):
    """Loss, hidden states and gradients of one packed batch, on one device or on a mesh of eight."""
    mesh = None if mesh_spec is None else make_mesh(mesh_spec)
    graphdef, params = create(spec, seed=0, remat="full", mesh=mesh)

    def loss(params, batch):
        hidden = nnx.merge(graphdef, params).hidden(batch["token"], batch["position"], batch["segment"])
        return (jnp.sin(hidden) * (batch["segment"] > 0)[..., None]).sum(), hidden

    function = jax.jit(jax.value_and_grad(loss, has_aux=True))
    if mesh is None:
        return function(params, packed())
    down = flat(params)["layers/down"]
    assert {shard.data.size for shard in down.addressable_shards} == {
        down.size // (mesh.shape["fsdp"] * mesh.shape["tensor"])
    }
    with jax.set_mesh(mesh):
        rows = {name: sharding(("batch", None), x.shape, mesh) for name, x in packed().items()}
        return function(params, jax.device_put(packed(), rows))


@pytest.fixture(scope="module")
def single():
    return {spec.family: loss_and_gradient(spec, None) for spec in (DENSE, MOE)}


MESHES = [
    (DENSE, MeshSpec(fsdp=2, tensor=2, context=2)),
    (DENSE, MeshSpec(fsdp=2, tensor=4)),  # more tensor shards than key/value heads
    (MOE, MeshSpec(data=2, fsdp=2, tensor=2)),
]


@pytest.mark.parametrize(("spec", "mesh"), MESHES, ids=lambda value: getattr(value, "family", str(value)))
def test_eight_devices_equal_one(spec, mesh, single):
    (loss, hidden), gradient = loss_and_gradient(spec, mesh)
    (loss1, hidden1), gradient1 = single[spec.family]
    np.testing.assert_allclose(loss, loss1, rtol=1e-5)
    np.testing.assert_allclose(hidden, hidden1, atol=2e-5)
    ones = flat(gradient1)
    for name, value in flat(gradient).items():
        scale = np.abs(ones[name]).max()
        np.testing.assert_allclose(value, ones[name], atol=1e-5 * scale, err_msg=name)


def test_splash_under_a_mesh_equals_the_reference():
    """Rows over fsdp, heads over tensor, tokens over context (exchanged for heads around the kernel)."""
    keys = jax.random.split(jax.random.key(0), 3)
    q = jax.random.normal(keys[0], (2, 256, 8, 64))
    k, v = (jax.random.normal(key, (2, 256, 2, 64)) for key in keys[1:])
    segment = jnp.asarray(np.repeat([[1, 2]], 128, axis=1).repeat(2, axis=0))
    want = attend_xla(q, k, v, segment)
    with jax.set_mesh(make_mesh(MeshSpec(fsdp=2, tensor=2, context=2))):
        got = jax.jit(lambda *x: attend_splash(*x, interpret=True))(q, k, v, segment)
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("one_draw", [1 << 26, 10], ids=["one draw", "leaf by leaf"])
def test_random_parameters_are_made_in_place_and_the_same_on_any_mesh(one_draw, monkeypatch):
    monkeypatch.setattr("jaxagent.model.transformer.ONE_DRAW", one_draw)
    _, one = create(DENSE, seed=5)
    mesh = make_mesh(MeshSpec(fsdp=4, tensor=2))
    _, many = create(DENSE, seed=5, mesh=mesh)
    places = flat(shardings(many, mesh))
    for name, leaf in flat(many).items():
        assert leaf.sharding == places[name], name
        np.testing.assert_array_equal(leaf, flat(one)[name], err_msg=name)
