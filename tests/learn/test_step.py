"""The update: what may not change it, what it must refuse, and what a gradient must do."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

from jaxagent.batch.pack import pack, unpack
from jaxagent.batch.targets import fixed_len_sum, seq_mean_token_mean, token_mean
from jaxagent.compilations import Compilations
from jaxagent.errors import ConfigError, DataError, DivergenceError
from jaxagent.learn.forward import Execution, make_score
from jaxagent.learn.optim import OptimizerSpec, make_optimizer
from jaxagent.learn.outliers import no_norms, norm_limit, with_norm
from jaxagent.learn.state import averaged, init_state, path_name, train_last_layers, train_only
from jaxagent.learn.step import Skips, make_update
from jaxagent.learn.terms import clipped_pg, cross_entropy, entropy_bonus, kl
from jaxagent.mesh.mesh import MeshSpec, make_mesh
from jaxagent.mesh.rules import AXES
from jaxagent.model.params import place as place_params
from jaxagent.stage import Term
from tests.learn import cases


def gradient(batches, terms=None, *, execution=None):
    """(flat gradient, metrics) of one update by plain gradient descent."""
    terms = terms or cases.pg()
    optimizer, state = cases.sgd_state()
    before = cases.flat(state.params)
    update = make_update(cases.model()[0], terms, optimizer, execution=execution)
    if execution is not None and execution.mesh is not None:
        state = jax.device_put(state, jax.NamedSharding(execution.mesh, jax.P()))
    state, metrics = update(state, batches)
    return before - cases.flat(state.params), metrics


def same(left, right, tolerance=2e-6):
    np.testing.assert_allclose(left[0], right[0], atol=tolerance)
    for name in right[1]:
        assert left[1][name] == pytest.approx(right[1][name], rel=2e-4, abs=2e-6), name


@pytest.fixture(scope="module")
def whole():
    return gradient(cases.packed(cases.samples(), cases.pg(), rows=8, length=16))


def test_the_gradient_is_that_of_a_dense_loss(whole):
    """One sample a row, dense log-softmax over every position, the loss written out."""
    from flax import nnx

    items = cases.samples()
    graphdef, _ = cases.model()

    def loss(params):
        model = nnx.merge(graphdef, params)
        total = 0.0
        for s in items:
            T = len(s.ids_T)
            ids_BT = jnp.asarray(s.ids_T)[None]
            hidden = model.hidden(ids_BT, jnp.arange(T)[None], jnp.ones((1, T), jnp.int32))[0]
            logp = jax.nn.log_softmax(hidden[:-1] @ model.head_VD.T)[jnp.arange(T - 1), s.ids_T[1:]]
            rho = jnp.exp(logp - s.logprobs["old"][1:])
            objective = jnp.minimum(rho * s.advantage_T[1:], jnp.clip(rho, 0.8, 1.28) * s.advantage_T[1:])
            mask = s.include["pg"][1:]
            total = total - (mask * objective).sum() / mask.sum()
        return total / len(items)

    want, grads = jax.value_and_grad(loss)(cases.params())
    np.testing.assert_allclose(whole[0], cases.flat(grads), atol=2e-6)
    assert whole[1]["loss/pg"] == pytest.approx(float(want), abs=1e-6)
    assert whole[1]["update/grad_norm"] == pytest.approx(np.linalg.norm(whole[0]), rel=1e-4)


def test_packed_equals_unpacked(whole):
    same(gradient(cases.packed(cases.samples(), cases.pg(), rows=8, length=32)), whole)


@pytest.mark.parametrize("rows", [1, 2])
def test_accumulated_equals_whole(rows, whole):
    batches = cases.packed(cases.samples(), cases.pg(), rows=rows, length=16)
    assert len(batches) > 1
    same(gradient(batches), whole)


def test_order_padding_and_masked_trajectories_change_nothing(whole):
    items = [*cases.samples(), cases.sample(7, 9, include=np.zeros(9))]
    items = [items[i] for i in (6, 3, 0, 5, 1, 4, 2)]
    same(gradient(cases.packed(items, cases.pg(), rows=8, length=16)), whole)


def test_devices_change_nothing(whole):
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2, 1), AXES)
    batches = cases.packed(cases.samples(), cases.pg(), rows=4, length=16)
    same(gradient(batches, execution=Execution(mesh)), whole)


def test_sharded_parameters_and_adamw_equal_one_device_and_compile_once():
    """Parameters and moments over fsdp and tensor, rows over fsdp, tokens over context; two accumulated steps."""
    optimizer = make_optimizer(OptimizerSpec(1e-2, weight_decay=0.1, max_grad_norm=0.05))
    mesh = make_mesh(MeshSpec(fsdp=2, tensor=2, context=2))
    batches = cases.packed(cases.samples(), cases.pg(), rows=2, length=16)
    assert len(batches) == 2
    ends = []
    for where in (None, mesh):
        params = cases.params() if where is None else place_params(cases.params(), where)
        state = init_state(params, optimizer, mesh=where)
        places = [leaf.sharding for leaf in jax.tree.leaves(state)]
        update = make_update(cases.model()[0], cases.pg(), optimizer, execution=Execution(where))
        state, _ = update(state, batches)
        state, _ = update(state, batches)
        ends.append(cases.flat(state.params))
        meter = Compilations()
        state, metrics = update(state, batches)
        meter.close()
        assert meter.count == 0
        assert metrics["update/steps"] == 1.0
        assert [leaf.sharding for leaf in jax.tree.leaves(state)] == places
    moments = jax.tree_util.tree_leaves_with_path(state.opt_state)
    sizes = {path_name(path): leaf.size / leaf.addressable_shards[0].data.size for path, leaf in moments}
    assert next(size for name, size in sizes.items() if name.endswith("mu/layers/q")) == 4
    # Adam's first steps are rate * g / |g|: where a gradient is next to nothing, its sign is a rounding error.
    moved = np.abs(ends[0] - ends[1])
    assert (moved > 1e-5).mean() < 1e-3
    assert moved.max() < 2e-2


def test_several_terms_each_with_its_own_count():
    terms = {
        "pg": Term(clipped_pg(0.2), seq_mean_token_mean),
        "entropy": Term(entropy_bonus(), token_mean, 0.01),
        "kl": Term(kl("k3"), fixed_len_sum(12), 0.1),
    }
    items = [
        replace(
            s,
            include=dict.fromkeys(terms, s.include["pg"]),
            logprobs={**s.logprobs, "reference": s.logprobs["old"]},
        )
        for s in cases.samples()
    ]
    one = gradient(cases.packed(items, terms, rows=8), terms)
    many = gradient(cases.packed(items, terms, rows=1), terms)
    same(many, one)
    total = sum(term.coef * one[1][f"loss/{name}"] for name, term in terms.items())
    assert one[1]["loss/total"] == pytest.approx(total, abs=1e-6)


@pytest.mark.parametrize("level", ["turn", "trajectory"])
def test_coarse_ratios_survive_packing(level):
    terms = cases.pg(level=level)
    same(
        gradient(cases.packed(cases.samples(), terms, rows=8, length=32), terms),
        gradient(cases.packed(cases.samples(), terms, rows=1, length=14), terms),
    )


def test_unmasked_tokens_get_exactly_no_gradient():
    """The huge advantage sits on an observation token: ids and streams there change nothing at all."""
    base = cases.sample(0, 9)
    off = np.flatnonzero(base.include["pg"] == 0)
    loud = replace(
        base,
        advantage_T=np.where(base.include["pg"] == 0, 1e9, base.advantage_T).astype(np.float32),
        logprobs={"old": np.where(base.include["pg"] == 0, -1e9, base.logprobs["old"]).astype(np.float32)},
    )
    a, b = (gradient(cases.packed([s], cases.pg(), rows=1)) for s in (base, loud))
    np.testing.assert_array_equal(a[0], b[0])
    last = replace(base, ids_T=np.where(np.arange(9) == off[-1], 1, base.ids_T))
    assert off[-1] != 8  # an observation inside the context does matter
    assert np.abs(gradient(cases.packed([last], cases.pg(), rows=1))[0] - a[0]).max() > 0


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_sign_of_the_gradient(sign):
    base = cases.sample(0, 9)
    item = replace(base, advantage_T=(sign * base.include["pg"]).astype(np.float32), logprobs={})
    optimizer = optax.sgd(0.1)
    state = init_state(cases.params(), optimizer)
    score = make_score(cases.model()[0])
    terms = cases.pg()
    parts = pack([item], terms, rows=1, length=16)
    before = unpack(parts, [score(state.params, part.batch).logprob_BS for part in parts])[0].sum()
    state, _ = make_update(cases.model()[0], terms, optimizer)(state, [part.batch for part in parts])
    after = unpack(parts, [score(state.params, part.batch).logprob_BS for part in parts])[0].sum()
    assert sign * (after - before) > 0.01


def test_scores_equal_a_dense_softmax_and_the_first_ratio_is_one():
    items = cases.samples()
    score = make_score(cases.model()[0])
    parts = pack(items, {}, rows=4, length=16)
    out = [score(cases.params(), part.batch) for part in parts]
    old = unpack(parts, [o.logprob_BS for o in out])
    items = [replace(s, logprobs={"old": lp}) for s, lp in zip(items, old)]
    _, metrics = gradient(cases.packed(items, cases.pg(), rows=8))
    assert metrics["ratio/max"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["policy/entropy"] == pytest.approx(np.log(40), abs=0.05)


def test_the_second_call_compiles_nothing():
    terms = cases.pg()
    optimizer = make_optimizer(OptimizerSpec(1e-3))
    state = init_state(cases.params(), optimizer)
    update = make_update(cases.model()[0], terms, optimizer)
    few, many = (cases.packed(cases.samples(), terms, rows=rows, length=16) for rows in (8, 1))
    for batches in (few, many):
        state, _ = update(state, batches)
    with jax.log_compiles(), pytest.MonkeyPatch.context():
        counts = {name: program._cache_size() for name, program in update._programs.items()}
        for batches in (few, many, few, many[:2]):
            state, _ = update(state, batches)
        assert {name: program._cache_size() for name, program in update._programs.items()} == counts
    assert set(counts.values()) == {1}
    assert int(state.step) == 6
    assert int(state.version) == 6


def test_an_empty_batch_takes_no_step():
    terms = cases.pg()
    optimizer = make_optimizer(OptimizerSpec(1e-3))
    state = init_state(cases.params(), optimizer)
    update = make_update(cases.model()[0], terms, optimizer)
    batches = cases.packed(cases.samples(), terms)
    empty = [replace(b, weight={"pg": np.zeros_like(b.weight["pg"])}) for b in batches]
    for nothing in ([], empty):
        state, metrics = update(state, nothing)
        assert metrics["skip/empty_batch"] == 1.0
        assert metrics["update/steps"] == 0.0
    assert int(state.step) == 0


def test_without_a_gradient_there_is_no_step():
    """All advantages 0: neither weight decay nor the momentum of earlier steps may move a parameter."""
    optimizer = make_optimizer(OptimizerSpec(1e-2, weight_decay=0.1))
    state = init_state(cases.params(), optimizer)
    update = make_update(cases.model()[0], cases.pg(), optimizer)
    state, metrics = update(state, cases.packed(cases.samples(), cases.pg(), rows=1))
    assert (metrics["update/steps"], metrics["skip/no_gradient"]) == (1.0, 0.0)
    before = cases.flat(state.params)
    items = [replace(s, advantage_T=np.zeros_like(s.advantage_T)) for s in cases.samples()]
    state, metrics = update(state, cases.packed(items, cases.pg(), rows=1))
    np.testing.assert_array_equal(cases.flat(state.params), before)
    assert (metrics["update/steps"], metrics["skip/no_gradient"]) == (0.0, 1.0)
    assert metrics["update/grad_norm"] == 0.0
    assert (int(state.step), int(state.version)) == (1, 1)


def test_a_non_finite_micro_batch_is_left_out_and_counted():
    terms = cases.pg()
    good = cases.packed(cases.samples(), terms, rows=1, length=16)
    bad = replace(good[0], advantage_BS=np.full_like(good[0].advantage_BS, np.nan))
    expected, _ = gradient(good[1:])
    got, metrics = gradient([bad, *good[1:]])
    np.testing.assert_allclose(got, expected, atol=1e-6)
    assert metrics["skip/nonfinite"] == 1.0
    assert metrics["update/steps"] == 1.0
    alone, metrics = gradient([bad])
    assert not alone.any()
    assert metrics["update/steps"] == 0.0


def test_repeated_non_finite_batches_stop_the_run():
    terms = cases.pg()
    optimizer, state = cases.sgd_state()
    update = make_update(cases.model()[0], terms, optimizer, skips=Skips(nonfinite=1))
    (batch,) = cases.packed(cases.samples()[:1], terms, rows=1)
    bad = replace(batch, advantage_BS=np.full_like(batch.advantage_BS, np.inf))
    state, _ = update(state, [bad])
    assert int(state.skipped) == 1
    with pytest.raises(DivergenceError, match="2 micro-batches"):
        update(state, [bad])


def test_running_moments_of_gradient_norms():
    """1, 2, 3: mean 2, population variance 2/3; after the window the oldest fade."""
    seen = jnp.asarray(no_norms())
    for norm in (1.0, 2.0, 3.0):
        seen = with_norm(seen, jnp.float32(norm))
    np.testing.assert_allclose(seen, [3, 2, 2 / 3], rtol=1e-6)
    assert norm_limit(seen, 5.0) == np.inf  # three steps do not say what is usual
    np.testing.assert_allclose(norm_limit(jnp.array([10, 2, 0.25]), 5.0), 4.5)
    for _ in range(2000):
        seen = with_norm(seen, jnp.float32(7.0))
    np.testing.assert_allclose(seen[1:], [7, 0], atol=1e-3)


def test_a_step_with_an_outlying_gradient_is_skipped_and_counted():
    """Ten usual steps, then one of a thousand times the norm: parameters, schedule and version stay. It is remembered
    at the limit, so that a lasting rise is learnt from in the end."""
    optimizer = optax.sgd(1e-6)
    state = init_state(cases.params(), optimizer)
    update = make_update(cases.model()[0], cases.pg(), optimizer, skips=Skips(sigma=5.0))
    usual = cases.packed(cases.samples(), cases.pg(), rows=8)
    loud = [replace(b, advantage_BS=1000 * b.advantage_BS) for b in usual]
    for _ in range(10):
        state, metrics = update(state, usual)
        assert (metrics["update/steps"], metrics["skip/outlier"]) == (1.0, 0.0)
    before, limit = cases.flat(state.params), float(norm_limit(state.norms, 5.0))
    state, metrics = update(state, loud)
    assert (metrics["update/steps"], metrics["skip/outlier"], metrics["skip/no_gradient"]) == (0.0, 1.0, 0.0)
    assert metrics["update/grad_norm"] > 100 * limit
    np.testing.assert_array_equal(cases.flat(state.params), before)
    assert (int(state.step), int(state.version)) == (10, 10)
    assert float(state.norms[0]) == 11
    assert limit <= float(norm_limit(state.norms, 5.0)) < 2 * limit


def test_without_a_limit_no_step_is_an_outlier():
    optimizer = optax.sgd(1e-6)
    state = init_state(cases.params(), optimizer)
    update = make_update(cases.model()[0], cases.pg(), optimizer)
    usual = cases.packed(cases.samples(), cases.pg(), rows=8)
    for batch in (*[usual] * 10, [replace(b, advantage_BS=1000 * b.advantage_BS) for b in usual]):
        state, metrics = update(state, batch)
    assert (int(state.step), metrics["skip/outlier"]) == (11, 0.0)


def test_an_average_follows_what_is_trained_and_keeps_the_rest_to_the_bit():
    old, new = (
        {"a": jnp.array([1.0, 0.1]), "b": jnp.array([0.3])},
        {"a": jnp.array([2.0, 0.1]), "b": jnp.array([0.3])},
    )
    moved = averaged(old, new, 0.9)
    np.testing.assert_allclose(moved["a"], [1.1, 0.1], rtol=1e-6)
    assert float(moved["b"][0]) == float(new["b"][0])


@pytest.mark.parametrize(
    ("partition", "moves"),
    [
        (train_only(lambda name: name.startswith("layers/q")), {"layers/q", "layers/q_norm"}),
        (train_last_layers(1), None),
    ],
    ids=["by name", "last layer"],
)
def test_only_the_trained_part_moves(partition, moves):
    optimizer = make_optimizer(OptimizerSpec(1e-2))
    state = init_state(cases.params(), optimizer, partition)
    terms = {"ce": Term(cross_entropy(), token_mean)}
    update = make_update(cases.model()[0], terms, optimizer, partition=partition)
    items = [replace(s, include={"ce": s.include["pg"]}) for s in cases.samples()]
    state, _ = update(state, cases.packed(items, terms, rows=8))
    after = dict(jax.tree_util.tree_leaves_with_path(state.params))
    for path, before in jax.tree_util.tree_leaves_with_path(cases.model()[1]):
        changed = np.asarray(after[path]) != before
        if moves is None:
            assert not changed[:1].any()
            assert changed[1:].any() == path_name(path).startswith("layers/")
        else:
            assert changed.any() == (path_name(path) in moves), path
    size = sum(leaf.size for leaf in jax.tree.leaves(state.opt_state))
    assert size < 2 * sum(leaf.size for leaf in jax.tree.leaves(state.params))


def test_missing_streams_and_bad_shapes_are_named():
    optimizer, state = cases.sgd_state()
    terms = {"kl": Term(kl("k3"), token_mean)}
    items = [replace(s, include={"kl": s.include["pg"]}) for s in cases.samples()]
    with pytest.raises(DataError, match="'reference'"):
        make_update(cases.model()[0], terms, optimizer)(state, cases.packed(items, terms))
    mesh = Mesh(np.array(jax.devices()).reshape(1, 8, 1, 1), AXES)
    update = make_update(cases.model()[0], cases.pg(), optimizer, execution=Execution(mesh))
    with pytest.raises(ConfigError, match="multiple of 8"):
        update(state, cases.packed(cases.samples(), cases.pg(), rows=3, length=32))
    with pytest.raises(ConfigError, match="no parameter is trainable"):
        init_state(cases.params(), optimizer, train_only(lambda name: False))
