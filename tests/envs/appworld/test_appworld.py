"""The real AppWorld, on a few train and dev tasks. No text of a task is in this file (licence)."""

import re
from random import Random

import pytest

from jaxagent.envs.protocol import Snapshots
from jaxagent.envs.replay import Prefix, open_at
from jaxagent.rollout.demonstrate import play
from jaxagent.types import Action, ExecStatus
from tests.envs.appworld import real
from tests.envs.contract import check_contract

LOGIN = """
profile = apis.supervisor.show_profile()
passwords = {a["account_name"]: a["password"] for a in apis.supervisor.show_account_passwords()}
token = apis.spotify.login(username=profile["email"], password=passwords["spotify"])["access_token"]
print(len(apis.spotify.show_liked_songs(access_token=token)))
"""
CASES = (  # code, status, what the text matches, executions so far
    ("print(1)", ExecStatus.OK, r"1\n", 1),
    ("x = 5", ExecStatus.OK, "Execution successful.", 2),
    ("print(x)", ExecStatus.OK, r"5\n", 3),
    (
        "1/0",
        ExecStatus.RUNTIME_ERROR,
        'Execution failed. Traceback:\n  File "<python-input>", line 1.*Zero',
        4,
    ),
    ("apis.spotify.show_song(song_id=-1)", ExecStatus.RUNTIME_ERROR, ".*Response status code is 4", 5),
    ("raise KeyboardInterrupt", ExecStatus.RUNTIME_ERROR, ".*KeyboardInterrupt", 6),
    ("print('Execution failed. Traceback:')", ExecStatus.OK, "Execution failed", 7),
    ("def f(:", ExecStatus.SYNTAX_ERROR, "Execution failed. Traceback:\nSyntax error in line:\ndef f", 7),
    ("\0", ExecStatus.SYNTAX_ERROR, "Execution failed", 7),
    ("import socket", ExecStatus.INVALID, ".*not allowed: socket", 7),
    ("open('/etc/passwd')", ExecStatus.INVALID, ".*not allowed", 7),
    ("  ", ExecStatus.INVALID, "No code available to execute.", 7),
    ("b = bytearray(8 * 2**30)", ExecStatus.RUNTIME_ERROR, ".*MemoryError", 8),
    ("import datetime; print(datetime.datetime.now().year)", ExecStatus.OK, "20", 9),
    ("print('x' * 1_200_000)", ExecStatus.OK, ".*output cut: 200001 more characters", 10),
)


@pytest.fixture(scope="module")
def spec():
    return real.spec(step_seconds=15)


@pytest.fixture
def opened(spec):
    env = spec.make()
    env.reset(spec.tasks("dev")[0])
    yield env
    env.close()


def say(env, code):
    return env.step(Action(text=code))


def test_splits_have_the_released_sizes(spec):
    train, dev = spec.tasks("train"), spec.tasks("dev")
    assert [len(train), len(dev)] == [90, 57]
    levels = [
        [sum(task.difficulty == level for task in split) for level in (1, 2, 3)] for split in (train, dev)
    ]
    assert levels == [[36, 36, 18], [30, 24, 3]]
    assert len({task.scenario for task in dev}) == 19


def test_the_contract_holds(spec):
    played = check_contract(spec, spec.tasks("dev")[0])
    assert played.results[-1].done
    assert played.evaluation.info["score"] == 1.0
    assert played.evaluation.info["completed"]


def test_giving_up_is_no_success(spec):
    played = play(spec, spec.tasks("train")[0], rng=Random(0), sloppiness=1.0)
    assert played.results[-1].done
    assert not played.evaluation.success
    assert played.evaluation.failures


def test_every_end_of_an_execution_has_its_status_and_only_what_ran_counts(opened):
    for code, status, pattern, executions in CASES:
        result = say(opened, code)
        assert result.exec_status is status, (code, result)
        assert re.match(pattern, result.observation, re.DOTALL), (code, result.observation[:300])
        assert result.info["interactions"] == executions, code
        assert not result.done


def test_a_slow_execution_is_a_timeout_and_the_world_lives_on(spec):
    quick = real.spec(step_seconds=2).make()
    quick.reset(spec.tasks("dev")[0])
    result = say(quick, "x = 1\nwhile True: pass")
    assert result.exec_status is ExecStatus.TIMEOUT
    assert "timed out after 2 seconds" in result.observation
    assert say(quick, "print(x)").observation == "1\n"
    quick.close()


def test_after_max_interactions_nothing_runs(spec):
    env = real.spec(max_interactions=1).make()
    env.reset(spec.tasks("dev")[0])
    assert not say(env, "print(1)").done
    result = say(env, "print(2)")
    assert result.exec_status is ExecStatus.RUNTIME_ERROR
    assert "Maximum number of executions (1) reached" in result.observation
    assert result.done
    env.close()


def test_the_answer_is_out_of_reach(opened, spec):
    """AppWorld alone lets an agent's code import `appworld` and read the task's answer."""
    name = spec.tasks("dev")[0].task_id
    result = say(opened, f"from appworld.task import Task\nprint(Task.load({name!r}).ground_truth.answer)")
    assert result.exec_status is ExecStatus.RUNTIME_ERROR
    assert "PermissionError" in result.observation
    folder = real.root() / "data" / "tasks" / name / "ground_truth"
    result = say(opened, f"import pathlib\nprint(pathlib.Path('{folder}/answer.json').read_text())")
    assert "PermissionError" in result.observation


def test_nothing_passes_from_one_episode_to_the_next(spec):
    """In a process that is used again, a logout makes the next episode's login fail: the token is the same."""
    seen = []
    for _ in range(2):
        env = spec.make()
        env.reset(spec.tasks("train")[0])
        seen.append([say(env, LOGIN), say(env, "import json; json.left = 1; print(hasattr(json, 'right'))")])
        say(env, "apis.spotify.logout(access_token=token); json.right = 1")
        env.close()
    assert seen[0] == seen[1]
    assert seen[0][0].exec_status is ExecStatus.OK


def test_a_rebuilt_world_replays_to_the_same_states(spec):
    task = spec.tasks("train")[0]
    codes = (LOGIN, "import random; print(random.random(), {'a', 'b', 'c'})", "print(token)")
    actions = [Action(text=code) for code in codes]
    env = spec.make()
    results = [env.reset(task), *(env.step(action) for action in actions)]
    env.close()
    assert not isinstance(env, Snapshots)
    kept = []
    at = open_at(spec.make, task, Prefix(tuple(actions[:2]), tuple(results[:3])), keep=kept.append)
    assert at == results[2]
    assert kept[0].step(actions[2]) == results[3]
    kept[0].close()


def test_the_anchor_changes_with_the_databases(opened):
    first = say(opened, "print(1)")
    again = say(opened, "print(1)")
    assert first.anchor == again.anchor
    say(opened, 'apis.supervisor.complete_task(status="fail")')
    assert say(opened, "print(1)").anchor != first.anchor
