"""The value head and its loss: numbers, what reaches the trunk, packing, adapters beside it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagent.batch.targets import token_mean
from jaxagent.errors import ConfigError
from jaxagent.learn.forward import Execution, make_score
from jaxagent.learn.loss import Scores, Streams
from jaxagent.learn.optim import OptimizerSpec, make_optimizer
from jaxagent.learn.state import init_state, train_also, train_last_layers, train_only
from jaxagent.learn.step import make_update
from jaxagent.learn.sums import add, explained_of, finish
from jaxagent.learn.terms import cross_entropy
from jaxagent.learn.value import decaying, value_loss
from jaxagent.mesh.mesh import MeshSpec, make_mesh
from jaxagent.model.critic import PREFIX, add_critic
from jaxagent.model.params import flat, place, shardings
from jaxagent.model.spec import CriticSpec
from jaxagent.stage import Term
from tests.learn import cases

CRITIC = CriticSpec(hidden=(8, 4))
LAYER = ("attn_norm", "q", "k", "v", "o", "mlp_norm", "gate", "up", "down", "q_norm", "k_norm")


def evaluate(loss, value, target, old, mask):
    row = jnp.asarray([mask], jnp.float32)
    streams = Streams(
        row,
        jnp.zeros(row.shape, jnp.int32),
        jnp.zeros(row.shape, jnp.int32),
        row,
        {"return": jnp.array([target]), "value": jnp.array([old])},
    )
    out, sums = loss(Scores(row, row, jnp.array([value])), streams)
    return np.asarray(out[0]), finish(sums)


def test_the_clipped_loss():
    """V .9, V_old .5, ret 1: clipped to .7. Where the plain error is larger it rules."""
    found, metrics = evaluate(value_loss(0.2), [0.9, 0.9], [1.0, 0.0], [0.5, 0.5], [1, 1])
    np.testing.assert_allclose(found, [0.045, 0.405], atol=1e-6)
    assert metrics["critic/clipfrac"] == pytest.approx(0.5)
    assert metrics["critic/loss"] == pytest.approx((0.045 + 0.405) / 2)
    assert metrics["value/mean"] == pytest.approx(0.9)
    found, metrics = evaluate(value_loss(), [0.9], [1.0], [0.5], [1])
    np.testing.assert_allclose(found, [0.005], atol=1e-6)
    assert "critic/clipfrac" not in metrics


def test_the_gradient_is_zero_where_the_clip_holds():
    def total(value, loss):
        streams = Streams(
            jnp.ones((1, 1)),
            jnp.zeros((1, 1), jnp.int32),
            jnp.zeros((1, 1), jnp.int32),
            jnp.ones((1, 1)),
            {"return": jnp.ones((1, 1)), "value": jnp.full((1, 1), 0.5)},
        )
        return loss(Scores(jnp.zeros((1, 1)), jnp.zeros((1, 1)), value), streams)[0].sum()

    value = jnp.full((1, 1), 0.9)
    assert float(jax.grad(total)(value, value_loss(0.2))[0, 0]) == 0.0
    assert float(jax.grad(total)(value, value_loss())[0, 0]) == pytest.approx(-0.1)


def test_explained_variance():
    """Targets 1, 2, 3, errors 0, 0, 1 -> 2/3; unused tokens count for nothing, and no variance is no share."""
    target, error = jnp.array([[1.0, 2, 3, 50]]), jnp.array([[0.0, 0, 1, 50]])
    mask = jnp.array([[True, True, True, False]])
    assert finish({"v": explained_of(target, error, mask)})["v"] == pytest.approx(2 / 3, abs=1e-6)
    parts = [explained_of(target, error, mask & (jnp.arange(4) // 2 == half)[None]) for half in (0, 1)]
    assert finish(add({"v": parts[0]}, {"v": parts[1]}))["v"] == pytest.approx(2 / 3, abs=1e-6)
    assert finish({"v": explained_of(jnp.ones((1, 4)), error, mask)}) == {}
    assert finish({"v": explained_of(target, error, mask & False)}) == {}


def test_a_coefficient_may_decay():
    coef = decaying(0.1, 0.001, 200)
    assert [coef(step) for step in (0, 100, 200, 900)] == pytest.approx([0.1, 0.0505, 0.001, 0.001])
    with pytest.raises(ConfigError, match="over 0 optimiser steps"):
        decaying(0.1, 0.001, 0)


def test_a_negative_clip_is_refused():
    with pytest.raises(ConfigError, match=r"value clip=-0\.2"):
        value_loss(-0.2)


# --- with a model -----------------------------------------------------------------------------------------


def model(critic=CRITIC, *, awake=True):
    """A model with a head that no longer says 0."""
    graphdef, params = add_critic(cases.model()[0], cases.params(), critic, seed=1)
    if awake:
        params = jax.tree_util.tree_map_with_path(
            lambda path, leaf: leaf + 0.3 if "out" in jax.tree_util.keystr(path) else leaf, params
        )
    return graphdef, params


def value_samples(lengths=(9, 5, 14, 7)):
    return [
        replace(
            made,
            include={"value": made.include["value"]},
            logprobs={
                "return": np.linspace(0, 1, len(made.ids_T), dtype=np.float32),
                "value": made.logprobs["old"] * 0 + 0.4,
            },
        )
        for made in (cases.sample(i, n, term="value") for i, n in enumerate(lengths))
    ]


TERMS = {"value": Term(value_loss(0.2), token_mean)}


def gradients(graphdef, params, samples, *, terms=TERMS, partition=None, rows=4, execution=None):
    """Name -> parameter before minus after one step of plain descent."""
    before = {name: np.asarray(leaf) for name, leaf in flat(params).items()}
    optimizer = optax.sgd(1.0)
    mesh = execution.mesh if execution else None
    state = init_state(params, optimizer, partition, mesh=mesh)
    update = make_update(graphdef, terms, optimizer, partition=partition, execution=execution)
    state, metrics = update(state, cases.packed(samples, terms, rows=rows))
    return {name: before[name] - np.asarray(leaf) for name, leaf in flat(state.params).items()}, metrics


def moved(grads):
    return {name for name, gradient in grads.items() if gradient.any()}


def test_values_start_at_zero_and_a_model_without_a_head_has_none():
    graphdef, params = model(awake=False)
    (batch,) = cases.packed(value_samples(), TERMS)
    assert not make_score(graphdef)(params, batch).value_BS.any()
    assert make_score(cases.model()[0])(cases.params(), batch).value_BS is None


def test_a_value_is_that_of_the_state_before_its_token():
    """The token itself, and what follows it, cannot change it; the token before it does."""
    graphdef, params = model()
    score = make_score(graphdef)

    def values(sample):
        (batch,) = cases.packed([sample], TERMS, rows=1)
        return score(params, batch).value_BS[0]

    sample = value_samples((9,))[0]
    base = values(sample)
    ids = sample.ids_T.copy()
    scored = np.flatnonzero(sample.include["value"])
    ids[scored[3] :] = (ids[scored[3] :] + 7) % 40
    changed = values(replace(sample, ids_T=ids))
    np.testing.assert_allclose(changed[:4], base[:4], atol=1e-6)
    assert abs(changed[4] - base[4]) > 1e-4
    assert not base[len(scored) :].any()  # unused slots


def test_a_detached_head_learns_and_leaves_the_trunk_alone():
    attached, _ = gradients(*model(), value_samples())
    detached, _ = gradients(*model(replace(CRITIC, detach=True)), value_samples())
    heads = {name for name in attached if name.startswith(PREFIX)}
    assert moved(detached) <= heads
    assert {"critic/out", "critic/hidden0", "critic/out_bias"} <= moved(detached)
    assert "layers/q" in moved(attached)
    for name in heads:
        np.testing.assert_allclose(attached[name], detached[name], atol=1e-7, err_msg=name)


def test_a_stage_may_train_the_head_alone_whether_it_is_detached_or_not():
    grads, metrics = gradients(
        *model(), value_samples(), partition=train_only(lambda n: n.startswith(PREFIX))
    )
    assert metrics["update/steps"] == 1
    assert moved(grads) <= {name for name in grads if name.startswith(PREFIX)}
    assert grads["critic/out"].any()


def test_the_value_loss_leaves_log_probs_alone_and_the_head_leaves_imitation_alone():
    """A term that reads no values gives the gradient it gives without a head, and none to the head."""
    terms = {"pg": Term(cross_entropy(), token_mean)}
    plain, _ = gradients(cases.model()[0], cases.params(), cases.samples(), terms=terms)
    with_head, _ = gradients(*model(), cases.samples(), terms=terms)
    for name, gradient in plain.items():
        np.testing.assert_array_equal(with_head[name], gradient, err_msg=name)
    assert not {name for name in moved(with_head) if name.startswith(PREFIX)}


def test_micro_batches_give_the_gradient_of_the_whole():
    whole, metrics = gradients(*model(), value_samples(), rows=4)
    parts, again = gradients(*model(), value_samples(), rows=1)
    for name, gradient in whole.items():
        np.testing.assert_allclose(parts[name], gradient, atol=2e-6, err_msg=name)
    assert again["critic/expl_var"] == pytest.approx(metrics["critic/expl_var"], abs=1e-4)


def test_tokens_outside_the_mask_change_nothing():
    samples = value_samples()
    wild = []
    for sample in samples:
        outside = sample.include["value"] == 0
        streams = {name: np.where(outside, 77.0, s).astype(np.float32) for name, s in sample.logprobs.items()}
        wild.append(replace(sample, logprobs=streams))
    calm_grads, calm = gradients(*model(), samples)
    wild_grads, metrics = gradients(*model(), wild)
    assert metrics == calm
    for name, gradient in calm_grads.items():
        np.testing.assert_array_equal(wild_grads[name], gradient, err_msg=name)


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        (train_only(lambda name: name == "embed"), {"embed"}),
        (
            train_last_layers(1),
            {f"layers/{name}" for name in LAYER},
        ),
    ],
)
def test_the_head_is_trained_beside_whatever_is_trained(partition, expected):
    partition = train_also(partition, lambda name: name.startswith(PREFIX))
    graphdef, params = model()
    trained, _ = partition.split(params)
    heads = {name for name in flat(params) if name.startswith(PREFIX)}
    assert set(flat(trained)) == expected | heads
    grads, _ = gradients(graphdef, params, value_samples(), partition=partition)
    assert moved(grads) <= expected | heads
    assert {"critic/out", "critic/hidden1"} <= moved(grads)
    if "layers/q" in expected:
        assert not grads["layers/q"][0].any()
        assert grads["layers/q"][1].any()


def test_on_a_mesh_the_head_is_split_and_the_gradient_stays():
    mesh = make_mesh(MeshSpec(fsdp=4, tensor=2))
    graphdef, params = model()
    layout = flat(shardings(params, mesh))
    assert layout["critic/hidden0"].spec == jax.sharding.PartitionSpec(("fsdp",), ("tensor",))
    sharded, _ = gradients(graphdef, place(params, mesh), value_samples(), execution=Execution(mesh))
    single, _ = gradients(*model(), value_samples())
    for name, gradient in single.items():
        np.testing.assert_allclose(sharded[name], gradient, atol=5e-6, err_msg=name)


def test_the_head_may_have_a_learning_rate_of_its_own():
    """Adam's first step is the learning rate, whatever the gradient."""
    graphdef, params = model()
    before = {name: np.asarray(leaf) for name, leaf in flat(params).items()}
    optimizer = make_optimizer(OptimizerSpec(1e-3, critic_learning_rate=1e-2, max_grad_norm=0.0))
    state = init_state(params, optimizer)
    state, _ = make_update(graphdef, TERMS, optimizer)(state, cases.packed(value_samples(), TERMS))
    after = flat(state.params)
    assert np.abs(before["critic/out"] - after["critic/out"]).max() == pytest.approx(1e-2, rel=1e-3)
    assert np.abs(before["final_norm"] - after["final_norm"]).max() == pytest.approx(1e-3, rel=1e-2)


def test_a_moving_coefficient_scales_the_step_and_compiles_once():
    def first(coef):
        return gradients(*model(), value_samples(), terms={"value": Term(value_loss(0.2), token_mean, coef)})[
            0
        ]

    fixed, moving = first(0.3), first(lambda step: 0.3 - 0.1 * step)
    np.testing.assert_allclose(moving["critic/out"], fixed["critic/out"], atol=1e-7)
    asked = []
    terms = {"value": Term(value_loss(0.2), token_mean, lambda step: float(asked.append(step) or 0.5))}
    graphdef, params = model()
    optimizer = optax.sgd(0.1)
    state, update = init_state(params, optimizer), make_update(graphdef, terms, optimizer)
    for _ in range(3):
        state, _ = update(state, cases.packed(value_samples(), terms))
    assert asked == [0, 1, 2]
    assert update._programs["single"]._cache_size() == 1


def test_values_without_a_head_are_refused():
    with pytest.raises(ConfigError, match="needs a model with a value head"):
        gradients(cases.model()[0], cases.params(), value_samples())


def test_a_detached_head_learns_to_tell_states_apart():
    graphdef, params = model(CriticSpec((32,), detach=True), awake=False)
    optimizer = make_optimizer(OptimizerSpec(0.02))
    terms = {"value": Term(value_loss(), token_mean)}
    state, update = init_state(params, optimizer), make_update(graphdef, terms, optimizer)
    batches = cases.packed(value_samples((9, 5)), terms, rows=1)
    metrics = {}
    for _ in range(120):
        state, metrics = update(state, batches)
    assert metrics["critic/expl_var"] > 0.9
