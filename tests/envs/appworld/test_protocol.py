"""The host's end, the server and its forks, on a toy in place of AppWorld: nothing is needed but this repository."""

import asyncio
import os
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from jaxagent.envs.appworld import env as appworld_env
from jaxagent.envs.appworld.env import AppWorldEnv, Settings
from jaxagent.envs.appworld.server import Installation, current_server
from jaxagent.envs.appworld.spec import AppWorldOptions, appworld_spec
from jaxagent.envs.pool import EnvPool
from jaxagent.errors import EnvFailure
from jaxagent.types import Action, ExecStatus, Task

FAKE = "tests.envs.appworld.fake_serve"
TASK = Task("toy_1", "appworld", "train", "toy")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    (folder / "data").mkdir()
    return folder


@pytest.fixture(scope="module")
def settings(root):
    settings = Settings(Installation(Path(sys.executable), root / "data", module=FAKE), timeout_s=30)
    yield settings
    current_server(settings.installation).close()


@pytest.fixture(scope="module")
def keeping(root):
    installation = Installation(Path(sys.executable), root / "data", outputs=root, module=FAKE)
    yield Settings(installation, experiment="kept", max_interactions=3)
    current_server(installation).close()


@pytest.fixture
def opened(settings):
    env = AppWorldEnv(settings)
    env.reset(TASK)
    yield env
    env.close()


def say(env, code):
    return env.step(Action(text=code))


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until_gone(pid):
    for _ in range(100):
        if not is_alive(pid):
            return True
        time.sleep(0.05)
    return False


def test_an_episode_from_reset_to_verdict(settings):
    env = AppWorldEnv(settings)
    first = env.reset(TASK)
    assert first.observation == "Save: done"
    assert first.anchor == "0\nSave: done"
    assert first.info["supervisor"]["email"] == "a@b"
    result = say(env, "save done")
    assert (result.done, result.exec_status, result.anchor) == (
        True,
        ExecStatus.OK,
        "1\nExecution successful.",
    )
    verdict = env.evaluate()
    assert (verdict.success, verdict.passed, verdict.total) == (True, 1, 2)
    assert verdict.info == {"score": 0.5, "completed": True, "interactions": 1}
    env.close()


def test_worlds_are_processes_of_their_own_that_end_with_the_episode(settings, opened):
    other = AppWorldEnv(settings)
    other.reset(TASK)
    say(opened, "save a")
    assert say(other, "show").observation == ""
    pid = int(say(other, "pid").observation)
    assert pid != int(say(opened, "pid").observation)
    other.close()
    assert wait_until_gone(pid)
    assert say(opened, "show").observation == "a"


def test_a_message_without_code_is_answered_and_not_executed(opened):
    result = opened.step(Action(error="Found no code block."))
    assert (result.exec_status, result.observation) == (ExecStatus.INVALID, "Found no code block.")
    assert not result.done
    assert result.info["interactions"] == 0


def test_after_the_last_interaction_the_episode_ends(keeping):
    env = AppWorldEnv(keeping)
    env.reset(TASK)
    assert [say(env, "show").done for _ in range(4)] == [False, False, False, True]
    env.close()


def test_a_hang_that_no_timer_ends_is_a_timeout_and_the_verdict_is_about_what_was_saved(
    settings, opened, monkeypatch
):
    monkeypatch.setattr(appworld_env, "GRACE_S", 1.0 - settings.timeout_s)
    pid = int(say(opened, "pid").observation)
    say(opened, "save done")
    result = say(opened, "hang")
    assert (result.exec_status, result.done) == (ExecStatus.TIMEOUT, True)
    assert "timed out after 30 seconds" in result.observation
    assert wait_until_gone(pid)
    assert opened.evaluate().success
    assert say(opened, "show").done


@pytest.mark.parametrize("fault", ["die", "garbage", "flood"])
def test_code_that_costs_the_world_its_process_ends_the_episode_alone(settings, opened, fault):
    other = AppWorldEnv(settings)
    other.reset(TASK)
    result = say(opened, fault)
    assert (result.exec_status, result.done) == (ExecStatus.RUNTIME_ERROR, True)
    assert not opened.evaluate().success
    assert say(other, "show").exec_status is ExecStatus.OK
    other.close()


@pytest.mark.parametrize("forged", ["empty", "status"])
def test_answers_of_the_wrong_form_are_garbage(opened, forged):
    with pytest.raises(EnvFailure) as failure:
        say(opened, forged)
    assert failure.value.kind == "garbage"


def test_a_task_that_cannot_be_opened_names_the_cause(settings):
    env = AppWorldEnv(settings)
    with pytest.raises(EnvFailure, match="no such task"):
        env.reset(Task("broken_1", "appworld", "train", "broken"))
    env.close()


def test_a_dead_server_is_the_environments_failure_and_is_replaced(settings, opened):
    os.kill(current_server(settings.installation)._process.pid, signal.SIGKILL)
    with pytest.raises(EnvFailure) as failure:
        [say(opened, "show") for _ in range(100)]
    assert failure.value.kind == "died"
    again = AppWorldEnv(settings)
    again.reset(TASK)
    assert say(again, "show").exec_status is ExecStatus.OK
    again.close()


def test_a_server_that_does_not_start_says_why(root):
    broken = Installation(Path(sys.executable), root / "data", module="tests.envs.appworld.fake_broken")
    with pytest.raises(EnvFailure, match="appworld is broken"):
        AppWorldEnv(Settings(broken)).reset(TASK)


def test_worlds_see_no_environment_variable_of_the_run(opened, monkeypatch):
    assert "JAXAGENT" not in say(opened, "env").observation
    assert "PYTEST" not in say(opened, "env").observation


def test_outputs_are_thrown_away_with_the_episode_and_the_rest_with_the_server(root, settings):
    installation = Installation(Path(sys.executable), root / "data", module=FAKE, outputs=None)
    env = AppWorldEnv(Settings(installation))
    env.reset(TASK)
    server = current_server(installation)
    outputs = server.scratch / "root" / "experiments" / "outputs" / "episodes"
    assert any(outputs.iterdir())
    env.close()
    assert not any(outputs.iterdir())
    assert not (root / "experiments").exists() or not (root / "experiments/outputs/episodes").exists()


def test_kept_outputs_lie_where_the_official_command_looks(root, keeping):
    folder = root / "experiments" / "outputs" / "kept"
    first, second = AppWorldEnv(keeping), AppWorldEnv(keeping)
    first.reset(TASK)
    second.reset(TASK)
    say(first, "save a")
    say(second, "save b")
    for env in (first, second):
        env.evaluate()
        env.close()
    saved = [folder / f"rollout_{n}" / "tasks" / "toy_1" / "dbs" / "toy.jsonl" for n in (0, 1)]
    assert [path.read_text() for path in saved] == ["a", "b"]


def test_a_rollout_that_was_never_judged_gives_its_number_back(root, keeping):
    task = Task("other_1", "appworld", "train", "other")
    for _ in range(2):
        env = AppWorldEnv(keeping)
        env.reset(task)
        assert (root / "experiments/outputs/kept/rollout_0/tasks/other_1").exists()
        env.close()  # without a verdict: a failure of the environment
        assert not (root / "experiments/outputs/kept/rollout_0/tasks/other_1").exists()


def test_a_pool_hosts_several_worlds_in_a_worker_and_they_end_with_it(settings, monkeypatch):
    monkeypatch.setattr("jaxagent.envs.appworld.spec._check_package", lambda python: None)
    spec = _spec(settings)

    async def episodes():
        async with EnvPool(1) as pool:
            handles = [await pool.open(spec, TASK) for _ in range(3)]
            await handles[0].step(Action(text="save done"))
            pids = [int((await handle.step(Action(text="pid"))).observation) for handle in handles]
            verdicts = [await handle.evaluate() for handle in handles]
            await handles[0].close()
            return pids, [verdict.success for verdict in verdicts]

    pids, success = asyncio.run(episodes())
    assert success == [True, False, False]
    assert all(wait_until_gone(pid) for pid in pids)


def _spec(settings):
    """The real EnvSpec with the toy behind it."""
    for name in ("base_dbs", "api_docs", "datasets", "tasks"):
        (settings.installation.data / name).mkdir(exist_ok=True)
    options = AppWorldOptions(python=sys.executable, root=str(settings.installation.data.parent))
    return replace(appworld_spec(options), make=partial(AppWorldEnv, settings))
