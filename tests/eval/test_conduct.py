"""Numbers of examples are the specification's: run 3, duplicates 2, 2-grams .5, entropy .817, correlation .894."""

from dataclasses import replace

import pytest

from jaxagent.eval.conduct import (
    action_of,
    conduct_metrics,
    consecutive_duplicates,
    correlation,
    longest_run,
    repeated_2grams,
    tool_entropy,
)
from jaxagent.types import Action, ExecStatus, Prompt, Status, ToolCall
from tests.made_episodes import make_step, make_trajectory


def test_loops():
    assert longest_run("sss") == 3
    assert consecutive_duplicates("sss") == 2
    assert repeated_2grams("sss") == 0.5
    assert [longest_run("absscsssd"), consecutive_duplicates("absscsssd")] == [3, 3]
    assert repeated_2grams("abab") == pytest.approx(1 / 3)
    assert [longest_run(""), consecutive_duplicates(""), repeated_2grams("a")] == [0, 0, 0]


def test_tool_entropy():
    assert tool_entropy({"a": 0.6, "b": 0.3, "c": 0.1}, 3) == pytest.approx(0.817345, abs=1e-6)
    assert tool_entropy({"a": 5, "b": 5}, 2) == pytest.approx(1)
    assert tool_entropy({"a": 5, "b": 0}, 2) == 0


def test_correlation_of_length_and_return():
    assert correlation([10, 20, 30, 40], [0, 0, 1, 1]) == pytest.approx(0.894427, abs=1e-6)
    assert correlation([10, 20], [1, 1]) is None


def test_an_episodes_loops_and_lengths():
    looping = make_trajectory(1.0, steps=[make_step(k, tokens=3, text="go") for k in range(3)])
    plain = make_trajectory(0.0, steps=[make_step(0, tokens=1, text="a"), make_step(1, tokens=2, text="b")])
    cut = make_trajectory(0.0, steps=[make_step(0, tokens=3, text="c")], status=Status.STEP_LIMIT)
    out = conduct_metrics([looping, plain, cut, make_trajectory(steps=[])])
    assert out["loop/run_max"] == 3
    assert out["loop/run_mean"] == pytest.approx(5 / 3)
    assert out["loop/looping_frac"] == pytest.approx(1 / 3)
    assert out["loop/duplicates"] == pytest.approx(2 / 3)
    assert out["loop/repeated_2grams"] == pytest.approx(0.5 / 3)
    assert out["length/action_tokens"] == 5
    assert out["length/at_limit"] == pytest.approx(1 / 3)
    assert out["length/reward_corr"] == pytest.approx(1)
    assert not any(name.startswith("tools/") for name in out)
    assert conduct_metrics([]) == {}


def calling(*calls, tools=()):
    """An episode of one call a step."""
    steps = []
    for k, (name, value) in enumerate(calls):
        made = make_step(k)
        steps.append(with_action(made, Action(tool_calls=(ToolCall(name, {"x": value}),))))
    trajectory = make_trajectory(steps=steps)
    prompt = Prompt((), tuple({"type": "function", "function": {"name": name}} for name in tools))
    return replace(trajectory, prompt=prompt)


def with_action(step, action):
    return replace(step, action=action)


def test_tools_used_and_unknown():
    episode = calling(("find", 1), ("find", 1), ("book", 2), ("fly", 3), tools=("find", "book", "pay"))
    out = conduct_metrics([episode])
    assert out["tools/used"] == 3
    assert out["tools/unknown"] == 0.25
    # Over find, book, pay and fly.
    assert out["tools/entropy_share"] == pytest.approx(1.0397207708 / 1.3862943611)
    assert out["loop/duplicates"] == 1


def test_one_known_tool_leaves_no_choice_and_two_make_its_use_alone_a_collapse():
    assert "tools/entropy_share" not in conduct_metrics([calling(("find", 1), tools=("find",))])
    assert conduct_metrics([calling(("find", 1), tools=("find", "pay"))])["tools/entropy_share"] == 0


def test_a_message_without_a_legal_action_is_its_own_text():
    invalid = make_step(0, text="mumble", status=ExecStatus.INVALID)
    assert action_of(with_action(invalid, Action(error="no code"))) == "mumble"
    same = [
        with_action(make_step(0), Action(tool_calls=(ToolCall("f", {"a": 1, "b": 2}),))) for _ in range(2)
    ]
    other = with_action(make_step(0), Action(tool_calls=(ToolCall("f", {"b": 2, "a": 1}),)))
    assert action_of(same[0]) == action_of(same[1]) == action_of(other)
