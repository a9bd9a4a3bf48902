"""What a run sees of the world: prompts, parsing, observation messages, pickling."""

import pickle

import pytest

from jaxagent.envs.world.env import WorldEnv
from jaxagent.envs.world.inline import InlineSandbox
from jaxagent.envs.world.spec import world_spec
from jaxagent.envs.world.tasks import build
from jaxagent.errors import ConfigError
from jaxagent.types import Message
from tests.envs.world.worlds import one_task


def test_the_full_prompt_names_task_and_person_but_no_secret():
    spec, task = world_spec("full"), one_task("full", "sendmoney")
    prompt = spec.prompt(task, WorldEnv(InlineSandbox).reset(task))
    world, goal = build(task)
    text = prompt.messages[-1].content
    assert prompt.messages[0].role == "system"
    assert goal.instruction in text
    assert world.opening["email"] in text
    assert not any(password in text for password in world.passwords.values())


def test_the_easy_prompt_is_the_instruction():
    spec, task = world_spec("easy"), one_task("easy", "pay")
    prompt = spec.prompt(task, WorldEnv(InlineSandbox).reset(task))
    assert [message.role for message in prompt.messages] == ["user"]
    assert prompt.messages[0].content.startswith("pay ")
    assert len(prompt.messages[0].content) < 40


def test_parsing():
    full, easy = world_spec("full").parse, world_spec("easy").parse
    block = Message("assistant", "Look first.\n```python\nprint(1)\n```\n")
    assert full(block).text.strip() == easy(block).text.strip() == "print(1)"
    plain = Message("assistant", "print(1)")
    assert easy(plain).text == "print(1)"
    assert full(plain).error
    assert full(Message("assistant", "")).error


def test_observations():
    assert world_spec("easy").observe("ok") == Message("user", "ok")
    assert world_spec("full").observe("x").content == "Output:\n```\nx\n```"


def test_limits_and_names():
    full, easy = world_spec(), world_spec("easy")
    assert (full.name, full.max_steps, easy.name, easy.max_steps) == ("world", 40, "world-easy", 8)
    with pytest.raises(ConfigError, match="full, easy"):
        world_spec("hard")


def test_what_crosses_to_the_workers_can_be_pickled():
    for level in ("full", "easy"):
        spec = world_spec(level)
        assert pickle.loads(pickle.dumps(spec.make)) is WorldEnv
        task = spec.tasks("dev")[4]
        assert pickle.loads(pickle.dumps(task)) == task
