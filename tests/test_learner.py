"""From samples to optimiser steps: how many, in which order, when they stop; adapters from training to export."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.batch.targets import seq_mean_token_mean, token_mean
from jaxagent.compilations import Compilations
from jaxagent.errors import ConfigError
from jaxagent.export import export_adapter, export_model
from jaxagent.learn.forward import Execution
from jaxagent.learn.optim import make_schedule
from jaxagent.learn.state import averaged, train_only
from jaxagent.learn.terms import clipped_pg, cross_entropy
from jaxagent.learner import Network, minibatches, optimizer_spec, summary
from jaxagent.mesh.mesh import MeshSpec, make_mesh
from jaxagent.model.lora import add_lora
from jaxagent.model.params import flat
from jaxagent.model.spec import LoraSpec
from jaxagent.model.transformer import create
from jaxagent.policy import exact_float32
from jaxagent.stage import Term, Update
from jaxagent.types import Sample
from tests.decode.engines import SPEC
from tests.learn import cases
from tests.learners import episodes, make_engine, make_learner


def segments_of(counts):
    """A trajectory for each count, of so many segments."""
    owners = [owner for owner, count in enumerate(counts) for _ in range(count)]
    return [cases.sample(owner, 9, seed=i) for i, owner in enumerate(owners)]


def test_minibatches_count_trajectories_and_keep_their_segments_together():
    samples = segments_of((2, 3, 5, 1, 1))
    cut = minibatches(samples, 2, seed=(0, 1))
    owners = [{sample.trajectory for sample in part} for part in cut]
    assert [len(part) for part in owners] == [2, 2, 1]
    assert set.union(*owners) == set(range(5))
    assert sum(len(part) for part in cut) == len(samples)
    assert minibatches(samples, 0, seed=(0,)) == [samples]
    assert minibatches([], 2, seed=(0,)) == minibatches([], 0, seed=(0,)) == []


def test_the_order_of_minibatches_is_that_of_the_seed():
    def order(*seed):
        return [s.trajectory for part in minibatches(segments_of((1,) * 16), 4, seed=seed) for s in part]

    assert order(0, 1) == order(0, 1)
    assert len({tuple(order(0, i)) for i in range(4)}) == 4


@pytest.fixture(scope="module")
def plain():
    return cases.model()[0]


def counting(plain, *, moved=0.0, **update):
    """A learner whose optimiser steps are only counted; each reports that its policy has moved by so much."""
    learner = make_learner(plain, cases.params(), terms=cases.pg(), **update)
    taken = []

    def step(state, batches):
        taken.append({float(batch.count["pg"]) for batch in batches})
        return state, {"update/steps": 1.0, "ratio/log_total": moved, "ratio/max": float(len(taken))}

    learner._update = step
    return learner, taken


@pytest.mark.parametrize("counts", [(1, 1, 1, 1, 1), (2, 3, 5, 1, 1)], ids=["whole", "rewritten contexts"])
def test_steps_depend_on_trajectories_only(plain, counts):
    learner, taken = counting(plain, epochs=2, minibatch=2)
    metrics = learner.update(segments_of(counts), seed=(0,))
    assert metrics["update/steps"] == 6.0
    assert taken == [{2.0}, {2.0}, {1.0}] * 2  # each term's count is that of the whole minibatch
    assert metrics["ratio/max"] == 6.0


@pytest.mark.parametrize(("rows", "axes", "expected"), [(3, {"tensor": 2}, 4), (12, {}, 16), (8, {}, 8)])
def test_rows_are_rounded_up_to_the_mesh(plain, rows, axes, expected):
    learner, _ = counting(plain, rows=rows)
    learner.model = replace(learner.model, execution=Execution(make_mesh(MeshSpec(**axes))))
    shapes = []
    learner._update = lambda state, batches: (
        state,
        {"rows": shapes.append(batches[0].token_BT.shape) or 1.0},
    )
    learner.update(segments_of((1, 1)), seed=(0,))
    assert shapes == [(expected, 64)]


def test_float32_products_are_exact_off_the_cpu(monkeypatch):
    asked = []
    monkeypatch.setattr(jax.config, "update", lambda *setting: asked.append(setting))
    for dtype, platform in (("float32", "cpu"), ("bfloat16", "tpu")):
        exact_float32(dtype, platform)
    assert asked == []
    exact_float32("float32", "tpu")
    assert asked == [("jax_default_matmul_precision", "highest")]


def test_an_iteration_ends_when_the_policy_has_moved_too_far(plain):
    learner, taken = counting(plain, epochs=3, minibatch=4, kl_stop=2.0, moved=-8.4)
    metrics = learner.update(segments_of((1,) * 8), seed=(0,))
    assert (len(taken), metrics["update/kl_stopped"]) == (1, 1.0)  # 8.4 nats over 4 trajectories
    learner, taken = counting(plain, epochs=3, minibatch=4, kl_stop=2.0, moved=-7.6)
    assert "update/kl_stopped" not in learner.update(segments_of((1,) * 8), seed=(0,))
    assert len(taken) == 6


def test_summary_of_an_iteration():
    steps = [{"update/steps": 1.0, "update/tokens": 5.0, "loss/pg": 1.0, "ratio/max": 3.0}]
    steps += [{"update/steps": 0.0, "update/tokens": 7.0, "loss/pg": 2.0, "ratio/max": 1.0, "ce/nll": 4.0}]
    assert summary(steps) == {
        "update/steps": 1.0,
        "update/tokens": 12.0,
        "loss/pg": 1.5,
        "ratio/max": 3.0,
        "ce/nll": 4.0,
    }
    moved = [{"ratio/approx_kl": 0.01}, {"ratio/approx_kl": 0.2}]
    assert summary(moved)["ratio/approx_kl_max"] == 0.2  # one step too far is not averaged away
    assert summary([]) == {"update/steps": 0.0, "skip/empty_batch": 1.0}


def test_a_schedule_is_as_long_as_the_optimiser_steps_of_its_stage():
    update = Update(1e-3, epochs=2, minibatch=8, schedule="linear", steps_per_iteration=8)
    assert optimizer_spec(update, 30).total_steps == 240
    with pytest.raises(ConfigError, match="has 0 optimiser steps"):
        make_schedule(optimizer_spec(Update(1e-3, schedule="cosine"), 30))


# --- temperatures that change, weights beside the policy's ---------------------------------------------------


def test_a_temperature_schedule_is_that_of_sampler_and_trainer_and_compiles_nothing():
    graphdef, params = create(SPEC, seed=3)
    schedule = (1.2, 1.0, 0.85, 0.7)
    terms = {"pg": Term(clipped_pg(), seq_mean_token_mean)}
    engine = make_engine(graphdef, params, SPEC)
    learner = make_learner(graphdef, params, terms=terms)
    learner.stage = replace(learner.stage, temperature=schedule.__getitem__)
    meter = Compilations()
    entropies = []
    for iteration, temperature in enumerate(schedule):
        if iteration == 2:
            meter.count = 0
        learner.at(iteration)
        engine.load(learner.params, learner.version)
        segments = episodes(engine, seed=iteration, temperature=temperature)
        scores = learner.token_scores(segments)
        for segment, score in zip(segments, scores, strict=True):
            np.testing.assert_allclose(score.logprob_T, segment.logprobs["behaviour"], atol=TOLERANCE)
            assert (score.best_T >= score.logprob_T - TOLERANCE)[
                segment.mask_T
            ].all()  # of the likeliest token
            assert score.best_T[segment.mask_T].max() < 0
        entropies.append(
            np.mean([s.entropy_T[segment.mask_T].mean() for s, segment in zip(scores, segments)])
        )
        assert learner.update(learnt_from(segments, "pg"), seed=(iteration,))["update/steps"] == 1.0
    meter.close()
    assert meter.count == 0, "a later temperature compiled something"
    assert entropies[0] > entropies[-1]


def test_an_average_follows_and_leaves_alone_what_does_not_move():
    average = {"a": jnp.array([0.0, 10.0]), "b": jnp.array([0.1])}
    moved = averaged(average, {"a": jnp.array([10.0, 10.0]), "b": jnp.array([0.1])}, 0.9)
    np.testing.assert_allclose(moved["a"], [1.0, 10.0], rtol=1e-6)
    assert np.array_equal(moved["b"], np.float32([0.1]))


def test_a_teacher_of_another_size_scores_the_same_tokens():
    graphdef, params = create(SPEC, seed=3)
    other = replace(SPEC, layers=1, mlp=16)
    network = Network(*create(other, seed=5))
    segments = episodes(make_engine(graphdef, params, SPEC))
    learner = make_learner(graphdef, params, teacher=network)
    alone = make_learner(*create(other, seed=5))
    for found_T, expected_T in zip(
        learner.score_segments(segments, weights="checkpoint"), alone.score_segments(segments), strict=True
    ):
        np.testing.assert_array_equal(found_T, expected_T)
    with pytest.raises(ConfigError, match="not kept"):
        learner.score_segments(segments, weights="ema")
    with pytest.raises(ConfigError, match="not kept"):
        alone.score_segments(segments, weights="checkpoint")


# --- adapters, from training to decoder and export ----------------------------------------------------------


def learnt_from(segments, term):
    """Samples with advantages of both signs."""
    return [
        Sample(
            trajectory=i,
            ids_T=segment.ids_T,
            step_T=segment.step_T,
            advantage_T=np.where(segment.mask_T, (-1.0) ** i, 0).astype(np.float32),
            include={term: segment.mask_T.astype(np.float32)},
            logprobs=segment.logprobs,
        )
        for i, segment in enumerate(segments)
    ]


def torch_logprobs(model, segment):
    """Log-probs of the sampled tokens, 0 elsewhere, by a transformers model."""
    torch = pytest.importorskip("torch")
    ids = torch.tensor(segment.ids_T[None].astype(np.int64))
    with torch.no_grad():
        logprob_TV = model(ids).logits[0].log_softmax(-1).numpy()
    own_T = np.concatenate([[0.0], logprob_TV[np.arange(len(segment.ids_T) - 1), segment.ids_T[1:]]])
    return np.where(segment.mask_T, own_T, 0.0)


TOLERANCE = 2e-5  # float32, adapters merged or beside the weights


def test_adapters_alone_are_trained_reach_the_decoder_and_are_exported(tmp_path):
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    base_graphdef, base = create(SPEC, seed=3)
    export_model(tmp_path / "base", base_graphdef, base)
    graphdef, params = add_lora(base_graphdef, base, LoraSpec(rank=2, alpha=4.0), seed=1)
    start = {name: np.asarray(leaf) for name, leaf in flat(params).items()}
    engine = make_engine(graphdef, params, SPEC)
    first = episodes(engine)

    def assert_adapters_alone_moved(params):
        for name, leaf in flat(params).items():
            assert np.array_equal(leaf, start[name]) == (not name.startswith("lora/")), name

    adapters = train_only(lambda name: name.startswith("lora/"))
    common = {"partition": adapters, "learning_rate": 0.02, "weight_decay": 0.1}
    terms = {"ce": Term(cross_entropy(), token_mean)}
    supervised = make_learner(graphdef, params, terms=terms, epochs=2, **common)
    held = sum(leaf.size for leaf in jax.tree.leaves(supervised.state.opt_state))
    assert held < 3 * sum(leaf.size for name, leaf in start.items() if name.startswith("lora/"))
    assert supervised.update(learnt_from(first, "ce"), seed=(0,))["update/steps"] == 2.0
    assert_adapters_alone_moved(supervised.params)

    terms = {"pg": Term(clipped_pg(), seq_mean_token_mean)}
    learner = make_learner(graphdef, supervised.params, terms=terms, version=supervised.version, **common)
    meter = Compilations()
    for iteration in range(3):
        if iteration == 2:
            assert meter.count > 0
            meter.count = 0
        before = engine.checksum
        engine.load(learner.params, learner.version)
        assert engine.checksum != before
        segments = episodes(engine, seed=iteration)
        for segment, scored_T in zip(segments, learner.score_segments(segments), strict=True):
            np.testing.assert_allclose(scored_T, segment.logprobs["behaviour"], atol=TOLERANCE)
        learner.update(learnt_from(segments, "pg"), seed=(iteration,))
    meter.close()
    assert meter.count == 0, "the third iteration compiled something"
    assert learner.version == 5
    assert_adapters_alone_moved(learner.params)

    (now_T,) = learner.score_segments(first[:1])
    assert (
        np.abs(now_T - first[0].logprobs["behaviour"]).max() > 0.1
    )  # the base no longer describes the policy
    export_model(tmp_path / "merged", graphdef, learner.params)
    export_adapter(tmp_path / "adapter", graphdef, learner.params, base=str(tmp_path / "base"))
    load = transformers.AutoModelForCausalLM.from_pretrained
    adapted = peft.PeftModel.from_pretrained(load(tmp_path / "base"), tmp_path / "adapter")
    for model in (load(tmp_path / "merged"), adapted):
        np.testing.assert_allclose(torch_logprobs(model.eval(), first[0]), now_T, atol=TOLERANCE)


def test_outliers_are_counted_over_the_steps_of_an_iteration():
    assert (
        summary([{"skip/outlier": 1.0}, {"skip/outlier": 0.0}, {"skip/outlier": 1.0}])["skip/outlier"] == 2.0
    )
