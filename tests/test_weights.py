"""The parameters of a run: what the stage keeps beside the policy's, what the decoder is given, what is saved."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from jaxagent.config import PackConfig
from jaxagent.learn.forward import Execution
from jaxagent.learn.state import train_all
from jaxagent.policy import Policy
from jaxagent.stage import Stage, Teacher, Update
from jaxagent.types import Sampling
from jaxagent.weights import Weights
from tests.learn import cases

SAMPLES = [cases.sample(i, 9, seed=i) for i in range(4)]
SHAPE = PackConfig(rows=4, length=64)
STAGE = Stage("s", None, 1, None, cases.pg(), Update(1e-2), needs=("reference",))


class Decoder:
    """An engine that takes newer weights only, and writes down which."""

    def __init__(self):
        self.version, self.given = -1, []

    def load(self, params, version):
        self.version = version
        self.given.append((version, cases.flat(params)))


def the_weights():
    policy = Policy(cases.model()[0], cases.params(), train_all(), Execution())
    return Weights(policy, Decoder(), turns=False)


@pytest.mark.parametrize(("keep", "share"), [(0.5, 0.5), (1.0, 0.0)])
def test_a_moving_reference_is_what_the_next_iteration_is_held_to(keep, share):
    """Half of itself and half of the policy after each update; a fixed one stays where the stage began."""
    weights = the_weights()
    learner = weights.begin(replace(STAGE, reference_ema=keep), SHAPE, None)
    start = cases.flat(cases.params())
    np.testing.assert_array_equal(cases.flat(learner.model.frozen["reference"]), start)
    learner.update(SAMPLES, seed=(0,))
    weights.hand_off(learner)
    moved = cases.flat(learner.params) - start
    assert np.abs(moved).max() > 1e-3
    reference = weights.state()["reference"]
    np.testing.assert_allclose(cases.flat(reference) - start, share * moved, atol=1e-6)
    assert learner.model.frozen["reference"] is reference


def test_the_decoder_is_given_each_version_once_and_none_by_a_stage_that_does_not_roll_out():
    weights = the_weights()
    learner = weights.begin(STAGE, SHAPE, None)
    learner.update(SAMPLES, seed=(0,))
    weights.hand_off(learner)
    assert weights.handed == []
    weights.version = learner.version
    weights.end()
    learner = weights.begin(replace(STAGE, sampling=Sampling(max_tokens=4)), SHAPE, None)
    for _ in range(2):
        weights.load(learner.params)
    learner.update(SAMPLES, seed=(1,))
    weights.hand_off(learner)
    assert weights.handed == [1, 2]
    weights.lend("reference")
    assert [version for version, _ in weights.engine.given] == [1, 2, 2]
    first, second, lent = (params for _, params in weights.engine.given)
    np.testing.assert_array_equal(lent, first)  # where the second stage began
    assert np.abs(second - first).max() > 1e-3


def test_a_stage_is_taken_up_where_it_was_saved():
    weights, again = the_weights(), the_weights()
    learner = weights.begin(replace(STAGE, reference_ema=0.5), SHAPE, None)
    learner.update(SAMPLES, seed=(0,))
    weights.hand_off(learner)
    saved = jax.tree.map(np.asarray, weights.state())
    later = again.begin(replace(STAGE, reference_ema=0.5), SHAPE, None)
    again.restore(jax.tree.map(jax.numpy.array, saved))
    assert later.version == 1
    for name in ("current", "reference"):
        np.testing.assert_array_equal(cases.flat(later.weights(name)), cases.flat(learner.weights(name)))


@pytest.mark.parametrize("within", [True, False])
def test_going_back_gives_a_version_that_the_decoder_has_not_seen(within):
    weights = the_weights()
    teacher = Teacher(lambda trajectory: None, "ema")
    learner = weights.begin(replace(STAGE, sampling=Sampling(max_tokens=4), teacher=teacher), SHAPE, None)
    start = jax.tree.map(np.asarray, weights.state() if within else {"params": learner.params})
    for seed in range(2):
        learner.update(SAMPLES, seed=(seed,))
        weights.hand_off(learner)
    weights.version = 1  # the second update belongs to an iteration that was not finished
    templates = []

    def read(template):
        assert learner.model.frozen == {}, "arrays of before and after would lie in memory together"
        templates.append(template)
        return jax.tree.map(jax.numpy.array, start)

    state = weights.go_back(read, within=within)
    assert jax.tree.structure(templates[0]) == jax.tree.structure(start)
    assert weights.version == 3
    np.testing.assert_array_equal(cases.flat(weights.params), cases.flat(cases.params()))
    assert set(state) == ({"train", "reference", "average"} if within else {"params"})
    if within:
        assert int(state["train"].version) == 3
