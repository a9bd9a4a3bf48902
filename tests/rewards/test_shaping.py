"""Shaping terms at hand-computed values."""

from dataclasses import replace

import pytest

from jaxagent.errors import ConfigError
from jaxagent.rewards.outcome import success
from jaxagent.rewards.shaping import (
    action_tokens,
    excess,
    excess_penalty,
    format_score,
    invalid_actions,
    message_format,
    overlong,
    overlong_penalty,
    per_illegal_step,
    plus,
    sigmoid_length,
    tool_score,
    weighted,
)
from jaxagent.types import Action, ToolCall
from tests.made_episodes import make_step, make_trajectory


def episode(tokens, reward=1.0):
    return make_trajectory(reward, steps=[make_step(k, tokens=n) for k, n in enumerate(tokens)])


@pytest.mark.parametrize(("n", "value"), [(6, 0.0), (7, -0.25), (8, -0.5), (10, -1.0), (12, -1.0), (3, 0.0)])
def test_overlong_is_linear_with_a_floor(n, value):
    assert overlong_penalty(n, limit=10, buffer=4) == value


def test_overlong_without_floor_and_at_dapos_lengths():
    assert overlong_penalty(12, limit=10, buffer=4, floor=False) == -1.5
    lengths = {16000: 0.0, 16384: 0.0, 17408: -0.25, 18432: -0.5, 20480: -1.0}
    for n, value in lengths.items():
        assert overlong_penalty(n, limit=20480, buffer=4096) == value
    assert overlong_penalty(8, limit=10, buffer=4, factor=0.5) == -0.25


def test_overlong_counts_action_tokens_or_steps():
    long = episode([5, 2, 1])
    assert action_tokens(long) == 8
    assert overlong(limit=10, buffer=4)(long) == -0.5
    assert overlong(limit=4, buffer=2, unit="steps")(long) == -0.5
    for buffer in (0, 11):
        with pytest.raises(ConfigError, match=r"reward\.overlong"):
            overlong(limit=10, buffer=buffer)


def test_excess_and_sigmoid_length():
    assert [excess_penalty(n, target=10) for n in (8, 14, 100)] == pytest.approx([0.0, -0.2, -0.5])
    paid = [plus(success, excess(target=10))(episode([n])) for n in (8, 10, 14)]
    assert paid == pytest.approx([1.0, 1.0, 0.8])
    values = [sigmoid_length(success, target=10, tau=4.0)(episode([n])) for n in (6, 10, 14)]
    assert values == pytest.approx([0.731059, 0.5, 0.268941], abs=1e-6)


def test_format_score():
    assert format_score(think=True, valid=2, invalid=0, boxed=True) == pytest.approx(0.7)
    assert format_score(think=True, valid=1, invalid=3) == 0.0
    assert format_score(think=True, valid=9, invalid=0) == 1.0


def test_tool_score():
    assert tool_score(used_needed=True, duplicates=0, unknown=0) == pytest.approx(0.1)
    assert tool_score(used_needed=False, duplicates=1, unknown=1) == pytest.approx(-0.35)
    assert tool_score(used_needed=True, duplicates=4, unknown=9) == -1.0


def test_composite():
    """1.0 x 1 + 0.2 x 0.7 + 0.1 x (-0.35) - 0.05 x 4 = 0.905"""
    total = plus(
        success,
        weighted(0.2, lambda t: format_score(think=True, valid=2, invalid=0, boxed=True)),
        weighted(0.1, lambda t: tool_score(used_needed=False, duplicates=1, unknown=1)),
        excess(target=10),
    )
    assert total(episode([14])) == pytest.approx(0.905)


def test_format_and_invalid_actions_of_an_episode():
    call = replace(make_step(0, text="<think>a</think>"), action=Action(tool_calls=(ToolCall("f", {}),) * 2))
    bad = replace(make_step(1, text="\\boxed{1}"), action=Action(error="no tool call"))
    trajectory = make_trajectory(1.0, steps=[call, bad])
    assert invalid_actions(trajectory) == 1
    assert message_format(trajectory) == pytest.approx(0.3 + 0.2 - 0.2 + 0.2)
    split = replace(call, text="", thinking="a"), replace(call, text="<tool_call>", thinking="a")
    cut, whole = (message_format(make_trajectory(1.0, steps=[step])) for step in split)
    assert (cut, whole) == pytest.approx((0.2, 0.5))  # a message cut while thinking has no think block
    three = make_trajectory(1.0, steps=[bad, bad, bad])
    assert per_illegal_step(-0.1)(three) == pytest.approx([-0.1] * 3)
    assert per_illegal_step(-0.1)(trajectory) == pytest.approx([0, -0.1])
    assert per_illegal_step(-0.1)(make_trajectory(0.0, steps=[])).shape == (0,)
