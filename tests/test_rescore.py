"""Stored groups under several methods: each method's own numbers, and why one has none."""

from dataclasses import replace

import numpy as np
import pytest

from jaxagent.errors import ConfigError, DataError
from jaxagent.recipes.base import Recipe
from jaxagent.recipes.policy import PolicyOptions
from jaxagent.rescore import Method, every_method, only, read_methods, read_reward, rescore
from jaxagent.stage import Stage, Update
from tests.made_episodes import make_group, make_task
from tests.recipes.test_stages import group

FRACTION = read_reward("test_fraction")


def columns(scored):
    """Advantages of the first group's trajectories, [trajectory, step], by method."""
    return {name: a_X.reshape(-1, 3) for name, a_X in zip(scored.methods, scored.advantage_XM.T)}


def test_each_method_gives_its_own_numbers():
    """R = 1, .5, 0, .5; the second step failed."""
    found = columns(rescore([group([4, 2, 0, 2])], read_methods("loop,gvpo,gvpo{b: 0.5}"), FRACTION))
    np.testing.assert_allclose(found["loop"], [[2 / 3] * 3, [0] * 3, [-2 / 3] * 3, [0] * 3], atol=1e-6)
    np.testing.assert_allclose(
        found["gvpo"], [[0.5, 0, 0.5], [0, -0.2, 0], [-0.5, -0.6, -0.5], [0, -0.2, 0]], atol=1e-6
    )
    np.testing.assert_allclose(found["gvpo{b: 0.5}"][2], [-0.5, -0.75, -0.5], atol=1e-6)


def test_returns_are_the_stored_ones_unless_another_reward_is_asked_for():
    stored = make_group([4.0, 2.0], steps=["ok"] * 3)  # neither solved
    methods = read_methods("loop,loop{reward: success}")
    found = columns(rescore([stored], methods, read_reward("stored")))
    assert found["loop"][:, 0].tolist() == [2, -2]
    assert found["loop{reward: success}"][:, 0].tolist() == [0, 0]
    found = columns(rescore([stored], methods, read_reward("{outcome: test_fraction, scale: 2.0}")))
    assert found["loop"][:, 0].tolist() == [0, 0]


def test_credit_that_leaves_an_episode_out_is_no_number():
    scored = rescore([make_group([1.0], steps=["ok"] * 3)], [halved()], None)
    assert np.isnan(scored.advantage_XM).all()


def halved(label="none", credit=lambda groups: []):
    """A method whose credit is the given function."""

    def stage(options, materials):
        source = type("Source", (), {"close": lambda self: None})()
        return Stage(materials.name, source, 1, list, {}, Update(1e-3), credit=credit)

    return Method(label, Recipe(PolicyOptions, stage), {})


def test_a_stream_that_was_not_stored_is_said_and_the_others_are_shown():
    def reads_values(groups):
        return [t.segments[0].logprobs["value"] for group in groups for t in group.trajectories]

    methods = [*read_methods("loop"), halved("gae", reads_values)]
    scored = rescore([group([4, 0])], methods, FRACTION)
    assert scored.methods == ("loop",)
    assert scored.failed == {
        "gae": "needs 'value', which the store does not hold; its token streams are behaviour"
    }


def test_a_method_that_needs_the_environment_is_said():
    method = Method("asks", Recipe(PolicyOptions, lambda options, made: made.spec.tasks("train")), {})
    scored = rescore([group([4, 0])], [method], FRACTION)
    assert "environment or the renderer for 'tasks'" in scored.failed["asks"]


def test_a_task_that_was_asked_for_twice_keeps_both_of_its_groups():
    twice = [group([4, 0]), group([0, 4])]
    scored = rescore(twice, read_methods("loop"), FRACTION)
    assert scored.advantage_XM[::3, 0].tolist() == [1, -1, -1, 1]


def test_one_task_is_shown_with_the_credit_it_got_among_all():
    scored = rescore([group([4, 0], "a"), group([2, 2, 4], "b")], read_methods("loop"), FRACTION)
    alone = only(scored, "b")
    assert [row.trajectory.task.task_id for row in alone.rows] == ["b"] * 9
    assert {row.group for row in alone.rows} == {0}
    np.testing.assert_array_equal(alone.advantage_XM, scored.advantage_XM[6:])
    with pytest.raises(DataError, match="it has a, b"):
        only(scored, "c")


def test_every_recipe_that_rolls_out_is_scored_by_default():
    labels = {method.label for method in every_method()}
    assert {"grpo", "loop", "gvpo", "gigpo", "skill_sd"} <= labels
    assert "sft" not in labels
    scored = rescore([group([4, 2, 0, 2])], every_method(), FRACTION)
    assert {"grpo", "loop", "gvpo", "gigpo", "skill_sd"} <= set(scored.methods)
    assert len({row.trajectory.traj_id for row in scored.rows}) == 4


def test_a_group_without_survivors_and_an_episode_without_steps_are_no_obstacle():
    empty = replace(group([4, 0], "b"), trajectories=())
    silent = make_group([1, 0], task=make_task("c"), steps=[])
    scored = rescore([empty, silent, group([4, 0])], read_methods("loop,gvpo"), FRACTION)
    assert scored.advantage_XM.shape == (6, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lop", "did you mean 'loop'"),
        ("gvpo{c: 1}", "gvpo.c: unknown key"),
        ("gvpo{b: [}", "not YAML"),
        ("gvpo{b}x", "not YAML"),
        (" , ", "names no method"),
        ("loop,loop", "names one method twice"),
        ("loop,sft", "sft: it credits nothing"),
    ],
)
def test_bad_methods_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        read_methods(text)


def test_options_may_hold_commas():
    labels = [
        m.label
        for m in read_methods(
            "gigpo{w: 0.5, mode: mean}, loop ,grpo{reward: {outcome: success, format: 0.1}}"
        )
    ]
    assert labels == ["gigpo{w: 0.5, mode: mean}", "loop", "grpo{reward: {outcome: success, format: 0.1}}"]


@pytest.mark.parametrize("text", ["sucess", "{outcome: nothing}", "{a: ["])
def test_bad_rewards_are_refused(text):
    with pytest.raises(ConfigError, match="--reward"):
        read_reward(text)
