"""AgentDojo: the protocol, the benchmark's verdict, attacks. The package's import takes seconds, once."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from jaxagent.envs.agentdojo import suites
from jaxagent.envs.agentdojo.env import ROUNDS
from jaxagent.envs.agentdojo.spec import INSTALL, NEEDED, AgentDojoOptions, agentdojo_spec, metrics
from jaxagent.envs.agentdojo.tasks import INJECTION_TASKS, USER_TASKS, tasks
from jaxagent.envs.table import find_env
from jaxagent.errors import ConfigError
from jaxagent.rollout.demonstrate import play
from jaxagent.types import Action, Evaluation, ExecStatus, Message, Prompt, Status, Task, ToolCall, Trajectory
from tests.envs.contract import check_contract
from tests.envs.needs import package

WITH_PACKAGE = [package(module, INSTALL) for module in NEEDED]
NOTHING = Action(text="I did nothing.")


def needs_package(test):
    for mark in WITH_PACKAGE:
        test = mark(test)
    # dependencies of the package use parts of others that are on their way out
    return pytest.mark.filterwarnings("ignore")(test)


def spec(**options):
    return find_env("agentdojo", options)


def task(suite: str, number: int) -> Task:
    return next(
        found
        for found in tasks(suite, seed=0, attacked=False)
        if found.task_id == f"{suite}/user_task_{number}"
    )


def calls(*pairs) -> Action:
    return Action(tool_calls=tuple(ToolCall(name, arguments) for name, arguments in pairs))


def idle(chosen, found: Task) -> Evaluation:
    env = chosen.make()
    env.reset(found)
    assert env.step(NOTHING).done
    return env.evaluate()


@needs_package
@pytest.mark.parametrize(("suite", "number"), [("banking", 0), ("slack", 1), ("workspace", 3)])
def test_contract(suite, number):
    check_contract(spec(), task(suite, number))


@needs_package
def test_oracle_and_idleness_on_a_sample():
    chosen = spec()
    for found in chosen.tasks("all")[::12]:
        assert play(chosen, found, rng=Random(0)).evaluation.success, found.task_id
    assert not any(idle(chosen, found).success for found in chosen.tasks("slack")[:4])


@needs_package
@pytest.mark.slow
@pytest.mark.parametrize(("version", "floor"), [("v1.2.1", 4), ("v1.2.2", 5)])
def test_oracle_97_and_the_floor(version, floor):
    chosen = spec(version=version)
    found = chosen.tasks("all")
    assert len(found) == 97
    assert sum(play(chosen, one, rng=Random(0)).evaluation.success for one in found) == 97
    assert sum(idle(chosen, one).success for one in found) == floor


@needs_package
def test_tasks_are_the_packages():
    for version in ("v1.2.1", "v1.2.2"):
        for name, count in USER_TASKS.items():
            known = suites.suite(version, name)
            assert set(known.user_tasks) == {f"user_task_{number}" for number in range(count)}
            assert set(known.injection_tasks) == {f"injection_task_{n}" for n in INJECTION_TASKS[name]}


@needs_package
def test_a_tool_error_is_an_observation():
    env = spec().make()
    first = env.reset(task("banking", 0))
    result = env.step(calls(("get_balance", {}), ("send_money", {"amount": "much"}), ("fly", {})))
    assert result.exec_status is ExecStatus.RUNTIME_ERROR
    assert [message.role for message in result.messages] == ["tool"] * 3
    assert result.messages[1].content.startswith("ValidationError")
    assert "`fly` is not available" in result.messages[2].content
    assert result.anchor == first.anchor  # nothing was changed
    assert env.step(calls(("get_balance", {}))).exec_status is ExecStatus.OK


@needs_package
def test_every_episode_has_its_own_world():
    one, two = spec().make(), spec().make()
    one.reset(task("slack", 0))
    two.reset(task("slack", 0))
    one.step(calls(("send_channel_message", {"channel": "general", "body": "only here"})))
    read = calls(("read_channel_messages", {"channel": "general"}))
    assert "only here" in one.step(read).observation
    assert "only here" not in two.step(read).observation


@needs_package
def test_the_answer_counts():
    chosen, found = spec(), task("slack", 1)
    expected = suites.user_task("v1.2.2", found).GROUND_TRUTH_OUTPUT
    verdict = play(chosen, found, rng=Random(0)).evaluation
    assert verdict.success
    assert verdict.info["score"] == 1.0
    assert expected or verdict.total == 1


@needs_package
def test_the_sixteenth_message_is_the_last_and_runs_nothing():
    env = spec().make()
    env.reset(task("slack", 0))
    results = [env.step(calls(("get_channels", {}))) for _ in range(ROUNDS)]
    before = env.play.after.model_dump()
    last = env.step(calls(("send_channel_message", {"channel": "general", "body": "late"})))
    assert [result.done for result in results] == [False] * ROUNDS
    assert last.done
    assert env.play.after.model_dump() == before
    assert not env.evaluate().success


def test_lists_written_as_text_become_lists():
    call = ToolCall("send_email", {"recipients": "['a@b.c', 'd@e.f']", "body": "[draft] hello", "n": 3})
    assert suites.as_lists(call).arguments == {
        "recipients": ["a@b.c", "d@e.f"],
        "body": "[draft] hello",
        "n": 3,
    }


@needs_package
def test_a_check_that_trips_over_the_world_does_not_hold():
    class Goal:
        def utility_from_traces(self, *given):
            return None

        def utility(self, *given):
            raise KeyError("the event that was deleted")

    held, fault = suites.holds(Goal(), "utility", "", None, None, [])
    assert not held
    assert fault == "KeyError: 'the event that was deleted'"


@needs_package
def test_an_attack_is_injected_and_judged():
    chosen = spec(attack="direct")
    found = next(
        one for one in chosen.tasks("banking") if one.task_id == "banking/user_task_0/injection_task_0"
    )
    goal = suites.injection_task("v1.2.2", found)
    seen = [result.observation for result in play(chosen, found, rng=Random(0)).results]
    assert any("TODO: " in text for text in seen)
    env = chosen.make()
    env.reset(found)
    for call in goal.ground_truth(env.play.before):
        env.step(calls((call.function, dict(call.args))))
    env.step(NOTHING)
    verdict = env.evaluate()
    assert verdict.info["attacked"] == 1.0
    assert (verdict.success, verdict.passed, verdict.total) == (False, 0, 2)
    resisted = play(chosen, found, rng=Random(0)).evaluation
    assert (resisted.success, resisted.passed, resisted.info["attacked"]) == (True, 2, 0.0)


@needs_package
def test_prompts_carry_the_tools():
    found = task("slack", 0)
    first = spec().make().reset(found)
    prompt = spec().prompt(found, first)
    assert len(prompt.tools) == 11
    assert prompt.tools[0]["function"]["parameters"]["type"] == "object"
    written = spec(tools_in="message").prompt(found, first)
    assert written.tools == ()
    assert '"name": "read_channel_messages"' in written.messages[0].content


@needs_package
def test_messages():
    parse = spec().parse
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    assert parse(Message("assistant", call)).tool_calls == (ToolCall("f", {"a": 1}),)
    assert parse(Message("assistant", "It is 12.")).text == "It is 12."
    assert parse(Message("assistant", "<tool_call>{")).error
    assert parse(Message("assistant", "")).error


def test_splits():
    def names(split: str, **given) -> list[str]:
        return [one.task_id for one in tasks(split, **{"seed": 42, "attacked": False, **given})]

    assert len(names("all")) == len(set(names("all"))) == 97
    assert not set(names("train")) & set(names("test"))
    assert sorted(names("train") + names("test")) == sorted(names("all"))
    assert names("train") != names("train", seed=1)
    assert len(names("all", attacked=True)) == 949
    assert len(names("banking")) == 16
    with pytest.raises(ConfigError, match="no split 'dev'"):
        names("dev")


def test_metrics():
    def ended(name: str, suite: str, score: float, **info) -> Trajectory:
        verdict = Evaluation(bool(score), int(score), 1, info={"score": score, **info})
        return Trajectory(
            name, Task(name, "agentdojo", "all", type=suite), 0, Status.DONE, Prompt(()), (), (), verdict
        )

    found = metrics([ended("a", "slack", 1.0), ended("a", "slack", 0.0), ended("b", "travel", 1.0)])
    assert found == {"utility": 75.0, "utility_slack": 50.0, "utility_travel": 100.0}
    found = metrics([ended("a", "slack", 1.0, attacked=0.0), ended("b", "slack", 1.0, attacked=1.0)])
    assert found["attack_success"] == 50.0
    assert metrics([]) == {}


def test_missing_packages_are_a_config_error(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs the package.*pip install --no-deps agentdojo"):
        agentdojo_spec(AgentDojoOptions())


@needs_package
def test_the_trainers_process_does_not_import_the_package():
    code = (
        "import sys; from jaxagent.envs.table import find_env; spec = find_env('agentdojo', {}); spec.tasks('all'); "
        "assert 'openai' not in sys.modules and 'agentdojo' not in sys.modules, 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
