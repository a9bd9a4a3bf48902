"""Composite returns at hand-computed values, and the run-file record that names them."""

from dataclasses import replace

import pytest

from jaxagent.credit.stats import group_metrics
from jaxagent.errors import ConfigError, RolloutError
from jaxagent.recipes.grpo import GrpoOptions
from jaxagent.recipes.rewards import returns_of
from jaxagent.rewards.outcome import success
from jaxagent.rewards.returns import PARTS, composed
from jaxagent.types import Action, Evaluation, ToolCall
from tests.made_episodes import make_group, make_step, make_trajectory


def reward_of(options, trajectory):
    return returns_of(options)([replace(make_group([0.0]), trajectories=(trajectory,))])[0].trajectories[0]


def options(**reward):
    return GrpoOptions.parse({"reward": reward}, "options").reward


def test_the_composite_of_the_specification():
    """outcome 1, .2 * format .7, .1 * tool -.35, -.05 * 4 steps too many -> .905"""
    terms = {"format": lambda t: 0.2 * 0.7, "tool": lambda t: 0.1 * -0.35, "length": lambda t: -0.2}
    group = composed(success, terms)([make_group([1.0])])[0]
    assert group.trajectories[0].reward == pytest.approx(0.905)
    assert group.trajectories[0].extra[PARTS]["shaping"] == pytest.approx(-0.095)


def test_terms_are_capped_together_and_the_outcome_is_not():
    collects = {"many": lambda t: 5.0}
    assert composed(success, collects, cap=0.3)([make_group([1.0])])[0].trajectories[0].reward == 1.3
    hates = {"many": lambda t: -5.0}
    assert composed(success, hates, cap=0.3, scale=10.0)([make_group([1.0])])[0].trajectories[0].reward == 9.7


def test_invalid_actions_cost_a_tenth_each_as_in_gigpo():
    wrong = [replace(make_step(k), action=Action(error="no action")) for k in range(3)]
    found = reward_of(
        options(outcome="success", scale=10.0, invalid_action=-0.1), make_trajectory(1.0, steps=wrong)
    )
    assert found.reward == pytest.approx(9.7)


def test_every_term_can_be_asked_for_and_is_logged_by_name():
    step = replace(make_step(0, text="<think>a</think>"), action=Action(tool_calls=(ToolCall("f", {}),)))
    steps = [step, replace(step, k=1)]  # the second call repeats the first
    asked = options(
        outcome="success",
        format=0.2,
        tool=0.1,
        length={"target": 1},
        overlong={"limit": 4, "buffer": 2},
        subgoals=[{"name": "seen", "observation": "aft"}],
    )
    found = reward_of(asked, make_trajectory(1.0, steps=steps))
    parts = found.extra[PARTS]
    assert parts["format"] == pytest.approx(0.2 * (0.3 + 2 * 0.1))  # a think block and two calls
    assert parts["tool"] == pytest.approx(0.1 * 0.05)
    assert parts["length"] == pytest.approx(-0.05)
    assert parts["overlong"] == pytest.approx(-1.0)
    assert parts["subgoals"] == pytest.approx(0.1)
    metrics = group_metrics([replace(make_group([1.0]), trajectories=(found,))])
    assert metrics["reward/overlong"] == -1.0
    assert metrics["reward/outcome"] == 1.0


def test_a_benchmarks_own_score():
    graded = replace(make_trajectory(0.0), evaluation=Evaluation(False, 0, 1, info={"score": 0.37}))
    assert reward_of("score", graded).reward == 0.37
    with pytest.raises(RolloutError, match="gives no score"):
        reward_of("score", make_trajectory(0.0))


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ({"outcome": "sucess"}, "outcome"),
        ({"formats": 0.1}, "formats"),
        ({"invalid_action": 0.1}, "less than or equal to 0"),
        ({"subgoals": [{"name": "a", "weight": 0}]}, "greater than 0"),
    ],
)
def test_bad_records_name_the_key(reward, message):
    with pytest.raises(ConfigError, match=message):
        GrpoOptions.parse({"reward": reward}, "options")


def test_a_judge_stands_alone():
    judge = {
        "models": [{"base_url": "http://x/v1", "model": "m"}],
        "rubric": [{"name": "a", "question": "b?"}],
    }
    with pytest.raises(ConfigError, match="drop format"):
        GrpoOptions.parse({"reward": {"judge": judge, "format": 0.1}}, "options")
