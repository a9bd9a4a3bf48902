"""Gymnasium environments with text: the example of docs/, FrozenLake's drawing, rules of success, what does not fit."""

import random
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxagent.envs.gymnasium_text import GymnasiumOptions, GymnasiumText, parse, plain
from jaxagent.envs.table import find_env
from jaxagent.errors import ConfigError
from jaxagent.types import Action, ExecStatus, Message
from tests.envs.contract import check_contract

gymnasium = pytest.importorskip("gymnasium", reason="needs gymnasium: pip install 'jaxagent[gymnasium]'")
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "gymnasium_env"
CORRIDOR = {
    "factory": "corridor:Corridor",
    "path": str(EXAMPLE),
    "actions": ["left", "right"],
    "expert": "corridor:Expert",
    "max_steps": 6,
}
LAKE = {
    "id": "FrozenLake-v1",
    "render": True,
    "actions": ["Left", "Down", "Right", "Up"],
    "kwargs": {"is_slippery": False},
    "max_steps": 20,
}


@pytest.fixture(autouse=True)
def same_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_the_example_is_short_and_keeps_the_contract():
    assert len((EXAMPLE / "corridor.py").read_text().splitlines()) < 60
    spec = find_env("gymnasium", CORRIDOR)
    for task in spec.tasks("train")[:3]:
        played = check_contract(spec, task)
        assert played.results[-1].reward == 1.0
    assert {task.seed for task in spec.tasks("train")}.isdisjoint(task.seed for task in spec.tasks("test"))


def test_frozen_lake_by_name_and_drawing():
    spec = find_env("gymnasium", LAKE)
    env = spec.make()
    task = spec.tasks("train")[0]
    first = env.reset(task)
    assert first.observation == "[S]FFF\nFHFH\nFFFH\nHFFG"
    down = env.step(spec.parse(Message("assistant", " down ")))
    assert down.observation == "  (Down)\nSFFF\n[F]HFH\nFFFH\nHFFG"
    assert down.anchor == down.observation
    wrong = env.step(Action("jump"))
    assert (wrong.exec_status, wrong.done) == (ExecStatus.INVALID, False)
    assert "Left, Down, Right, Up" in wrong.observation
    for name in ("Down", "Right", "Right", "Down", "Right"):
        last = env.step(Action(name))
    assert (last.done, last.reward, env.evaluate().success) == (True, 1.0, True)
    env.close()


def test_a_fall_is_no_success_unless_the_rule_says_so():
    for rule, solved in (("reward", False), ("terminated", True), ("info", False)):
        env = GymnasiumText(GymnasiumOptions(**{**LAKE, "success": rule}))
        env.reset(find_env("gymnasium", LAKE).tasks("train")[0])
        env.step(Action("Right"))
        last = env.step(Action("Down"))
        assert (last.done, last.reward) == (True, 0.0)
        verdict = env.evaluate()
        assert (verdict.success, verdict.info["score"]) == (solved, 0.0)
        env.close()


def test_the_same_seed_slips_the_same_way():
    options = {**LAKE, "kwargs": {"is_slippery": True}}
    spec = find_env("gymnasium", options)
    seen = []
    for _ in range(2):
        env = spec.make()
        env.reset(spec.tasks("train")[5])
        seen.append([env.step(Action("Right")).observation for _ in range(3)])
        env.close()
    assert seen[0] == seen[1]


class Dice(gymnasium.Env):
    """Draws from the global generators, as old environments do."""

    observation_space = action_space = gymnasium.spaces.Text(40, charset="0123456789 throw")

    def reset(self, *, seed=None, options=None):
        return self._thrown(), {}

    def step(self, action):
        return self._thrown(), 0.0, False, False, {}

    def _thrown(self) -> str:
        return f"{random.randrange(10**9)} {np.random.randint(10**9)}"  # noqa: NPY002


def test_episodes_side_by_side_do_not_share_the_global_generators():
    spec = find_env("gymnasium", {"factory": f"{__name__}:Dice"})
    task, throw = spec.tasks("train")[1], Action("throw")
    alone, first, second = spec.make(), spec.make(), spec.make()
    wanted = [alone.reset(task), alone.step(throw), alone.step(throw)]
    np.random.seed(5)  # noqa: NPY002
    mixed = [[env.reset(task)] for env in (first, second)]
    for _ in range(2):
        for env, seen in zip((first, second), mixed, strict=True):
            seen.append(env.step(throw))
    assert mixed == [wanted, wanted]
    assert np.random.random() == np.random.RandomState(5).random()  # noqa: NPY002  nor disturb whoever else draws


def test_colours_become_brackets():
    assert plain("a\x1b[41mS\x1b[0mb\x1b[1;32mc\x1b[0m\n") == "a[S]b[c]"
    with pytest.raises(TypeError, match="int, not text"):
        plain(3)


def test_actions_between_tags_are_an_option():
    options = GymnasiumOptions(tags=True)
    assert parse(options, Message("assistant", "so <action>Left</action>")).text == "Left"
    assert parse(options, Message("assistant", "Left")).error
    assert parse(GymnasiumOptions(), Message("assistant", "  ")).error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": "NoSuchEnv-v0"}, "NoSuchEnv"),
        ({}, "exactly one"),
        ({**LAKE, "factory": "corridor:Corridor"}, "exactly one"),
        ({**LAKE, "actions": ["a", "b"]}, "4 actions, 2 names"),
        ({**LAKE, "actions": ["a", "A", "b", "c"]}, "two names are the same"),
        ({**LAKE, "render": False}, "expected Text, or render: true"),
        ({**LAKE, "kwargs": {"no_such": 1}}, "no_such"),
        ({**CORRIDOR, "expert": "corridor:Export"}, "did you mean 'Expert'"),
        ({**CORRIDOR, "path": "/no/such"}, "does not exist"),
        ({**LAKE, "succes": "info"}, "did you mean 'success'"),
    ],
)
def test_what_does_not_fit_is_a_config_error(options, message):
    with pytest.raises(ConfigError, match=message):
        find_env("gymnasium", options)
