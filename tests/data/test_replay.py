"""Replay: what is drawn how often, what it weighs, and that a resumed buffer draws the same."""

import json
from dataclasses import replace

import numpy as np
import pytest

from jaxagent.checkpoint_state import host_json
from jaxagent.credit.group import group_mean, per_group
from jaxagent.data.replay import (
    PRIORITIES,
    Replay,
    ReplayRules,
    ReplaySource,
    importance,
    probabilities,
    replayed,
    scaled,
)
from jaxagent.errors import ConfigError
from jaxagent.recipes.stored import with_stored
from jaxagent.recipes.table import RECIPES
from jaxagent.train import credit
from jaxagent.types import Credited
from tests.made_episodes import make_group, make_task, make_trajectory
from tests.recipes.test_stages import materials, scored

RULES = {
    "capacity": 100,
    "fraction": 0.5,
    "priority": "advantage",
    "alpha": 0.6,
    "beta": 0.4,
    "max_lag": 5,
    "iterations": 11,
    "seed": 0,
}


def test_probabilities_and_weights_of_priorities():
    P_N = probabilities(np.array([1, 0.5, 0.1]), alpha=0.6)
    np.testing.assert_allclose(P_N, [0.518658, 0.344215, 0.137127], atol=1e-6)
    np.testing.assert_allclose(importance(P_N, beta=0.4), [0.58735, 0.692018, 1.0], atol=1e-6)
    np.testing.assert_allclose(probabilities(np.array([3.0, 0.0]), alpha=0.0), [0.5, 0.5])
    np.testing.assert_array_equal(importance(P_N, beta=0.0), [1, 1, 1])


def test_weights_at_beta_1_undo_the_priority():
    """The expected weighted draw is then the same for every trajectory."""
    P_N = probabilities(np.array([2.0, 0.3, 0.0, 1.0]), alpha=0.6)
    expected_N = P_N * importance(P_N, beta=1.0)
    np.testing.assert_allclose(expected_N, expected_N[0])


def test_beta_rises_to_1_over_the_stage():
    rules = ReplayRules(**RULES)
    assert [rules.beta_at(i) for i in (0, 5, 10, 50)] == pytest.approx([0.4, 0.7, 1.0, 1.0])


def item(advantages, *, reward=0.0, rollout=0):
    trajectory = make_trajectory(reward, steps=["ok"] * len(advantages), rollout=rollout)
    return Credited(trajectory, np.array(advantages, np.float32))


def test_priorities():
    odd = item([0.1, -0.7, 0.3], reward=-2.0)
    assert PRIORITIES["advantage"](odd) == pytest.approx(0.7)
    assert PRIORITIES["return"](odd) == 0.0
    assert PRIORITIES["return"](item([0.0], reward=0.5)) == 0.5
    assert PRIORITIES["uniform"](odd) == PRIORITIES["uniform"](item([0.0])) == 1.0


def played(iteration, n=4):
    """Credited trajectories of one complete group of an iteration."""
    group = make_group([i % 2 for i in range(n)], task=make_task(f"t{iteration}"))
    return per_group(group_mean)([scored(group, ("old",))])


def run(replay, iterations, n=4):
    """What comes out of the filter at each of these iterations, which follow each other."""
    out = []
    for iteration in iterations:
        out.append(replay.mix(played(iteration, n)))
        replay.end()
    return out


def of(items):
    return [(c.trajectory.task.task_id, c.trajectory.rollout) for c in items]


def test_new_trajectories_come_first_and_earlier_ones_make_the_asked_share():
    first, second = run(Replay(ReplayRules(**RULES)), [0, 1])
    assert of(first) == [("t0", i) for i in range(4)], "nothing is replayed in the iteration that sampled it"
    assert of(second)[:4] == [("t1", i) for i in range(4)]
    assert {task for task, _ in of(second)[4:]} == {"t0"}
    assert len(second) == 8
    replay = Replay(ReplayRules(**RULES | {"fraction": 0.25}))
    _, mixed = run(replay, [0, 1], n=6)
    assert len(mixed) == 8
    assert replay.metrics()["replay/drawn"] == 2


def test_advantages_of_their_own_group_and_old_log_probs_of_their_own_time_are_kept():
    replay = Replay(ReplayRules(**RULES))
    run(replay, [0])
    *_, drawn = replay.mix(played(1))
    own = played(0)[drawn.trajectory.rollout]
    np.testing.assert_array_equal(drawn.advantage_K, own.advantage_K, err_msg="equal |A|: every weight is 1")
    (segment,), (stored,) = drawn.trajectory.segments, own.trajectory.segments
    np.testing.assert_array_equal(segment.logprobs["old"], stored.logprobs["old"])


def test_the_weight_scales_advantages_of_steps_and_tokens():
    fine = replace(item([0.5, -1.0]), advantage_T=(np.array([0.0, 2.0], np.float32),))
    half = scaled(fine, 0.5)
    np.testing.assert_array_equal(half.advantage_K, [0.25, -0.5])
    np.testing.assert_array_equal(half.advantage_T[0], [0, 1])
    assert half.advantage_K.dtype == half.advantage_T[0].dtype == np.float32


def test_a_large_advantage_is_drawn_more_often_and_weighs_less():
    replay = Replay(ReplayRules(**RULES | {"capacity": 200, "fraction": 0.9, "beta": 1.0}))
    replay.mix([item([1.0], rollout=0), *(item([0.1], rollout=i) for i in range(1, 200))])
    counts, values = np.zeros(200), {}
    for seed in range(1, 40):
        replay.rules = replace(replay.rules, seed=seed)
        for drawn in replay._draw(200):
            counts[drawn.trajectory.rollout] += 1
            values[drawn.trajectory.rollout] = float(drawn.advantage_K[0])
    assert counts[0] > 2 * counts[1:].mean()
    assert values[0] == pytest.approx((0.11 / 1.01) ** 0.6, abs=1e-5)
    assert values[1] == pytest.approx(0.1)


def test_the_oldest_leave_first_by_capacity_and_by_age():
    small = Replay(ReplayRules(**RULES | {"capacity": 6}))
    run(small, [0, 1])
    assert small.metrics()["replay/size"] == 6
    assert [k.iteration for k in small._kept] == [0, 0, 1, 1, 1, 1]
    aged = Replay(ReplayRules(**RULES | {"max_lag": 1}))
    run(aged, [0, 1, 2])
    assert {k.iteration for k in aged._kept} == {1, 2}
    aged.end()
    aged.mix([])
    assert aged.metrics()["replay/size"] == 0


def test_nothing_is_replayed_beside_nothing():
    """An iteration in which the filter left nothing makes no step."""
    replay = Replay(ReplayRules(**RULES))
    run(replay, [0])
    assert replay.mix([]) == []


class Nothing:
    """An inner source."""

    def next(self, iteration):
        return []

    def observe(self, groups):
        return {"inner": 1.0}

    def state(self):
        return {"position": 3}

    def restore(self, state):
        assert state == {"position": 3}


def test_a_resumed_buffer_draws_the_same_bit_for_bit():
    whole, before = Replay(ReplayRules(**RULES)), Replay(ReplayRules(**RULES))
    run(whole, [0, 1])
    run(before, [0, 1])
    state = json.loads(host_json(ReplaySource(Nothing(), before).state()))
    resumed = ReplaySource(Nothing(), Replay(ReplayRules(**RULES)))
    resumed.restore(state)
    expected, found = run(whole, [2, 3, 4]), run(resumed.replay, [2, 3, 4])
    for a, b in zip(expected, found, strict=True):
        assert of(a) == of(b)
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x.advantage_K, y.advantage_K)
    assert resumed.observe([])["inner"] == 1.0
    assert resumed.observe([])["replay/lag_max"] <= 5


def test_a_source_that_is_asked_ahead_changes_no_draw():
    """Rollouts may run ahead of the update: ages count from the iteration that is learnt from."""
    in_step, ahead = Replay(ReplayRules(**RULES)), Replay(ReplayRules(**RULES))
    source = ReplaySource(Nothing(), ahead)
    for iteration, mixed in enumerate(run(in_step, [0, 1, 2])):
        source.next(iteration + 1)
        assert of(ahead.mix(played(iteration))) == of(mixed)
        source.observe([])


def test_replay_without_old_log_probs_is_refused():
    stage = RECIPES["gvpo"].stage(RECIPES["gvpo"].options(), materials())
    assert stage.needs == ()
    with pytest.raises(ConfigError, match="replay without old log-probs"):
        replayed(stage, ReplayRules(**RULES))


@pytest.mark.parametrize("recipe", ["gvpo", "loop", "gigpo", "skill_sd"])
def test_the_option_puts_the_buffer_behind_the_recipes_own_filter(recipe):
    options = RECIPES[recipe].options.parse(
        {"replay": {"fraction": 0.5}, "minibatch": 4, "tasks": 2, "group_size": 4}
    )
    plain = RECIPES[recipe].stage(options, materials())
    stage = with_stored(plain, options, materials())
    assert "old" in stage.needs
    assert stage.update.steps_per_iteration == 2 * plain.update.steps_per_iteration
    group = scored(make_group([1, 1, 0, 0]), stage.needs)
    for iteration, expected in enumerate((4, 8)):
        stage.source.next(iteration)
        assert len(stage.filter(credit(stage, stage.reward([group])))) == expected
        observed = stage.source.observe([group])
    assert observed["replay/drawn"] == 4
    plain.close()


def test_a_ratio_to_the_sampler_is_a_correction_too():
    """Bypass scores no old log-probs: those of the sampler stand in, and are kept with the trajectory."""
    options = RECIPES["gvpo"].options.parse({"replay": {}, "mismatch": {"mode": "bypass"}})
    stage = with_stored(RECIPES["gvpo"].stage(options, materials()), options, materials())
    assert stage.needs == ()
    groups = stage.reward([make_group([1, 1, 0, 0])])
    for _ in range(2):
        mixed = stage.filter(stage.credit(groups))
        stage.source.observe(groups)
    assert len(mixed) == 5
    assert "old" in mixed[-1].trajectory.segments[0].logprobs


def test_impossible_options_are_refused():
    options = RECIPES["gvpo"].options
    with pytest.raises(ConfigError, match=r"replay\.fraction"):
        options.parse({"replay": {"fraction": 1.0}})
    with pytest.raises(ConfigError, match="did you mean 'capacity'"):
        options.parse({"replay": {"capasity": 5}})
