"""Splits, options, prompt and metrics, from a data root of a few files: no package is needed."""

import json
import sys
from pathlib import Path
from random import Random

import pytest

from jaxagent.envs.appworld.expert import expert
from jaxagent.envs.appworld.prompt import demonstration, prompt
from jaxagent.envs.appworld.spec import PYTHON, ROOT, metrics
from jaxagent.envs.table import find_env
from jaxagent.errors import ConfigError
from jaxagent.prepare import prepare
from jaxagent.run_file import read_run
from jaxagent.types import Evaluation, Message, Status, StepResult, Task, Trajectory

RUNS = Path(__file__).parents[3] / "configs" / "runs"
APPS = ("spotify", "venmo", "gmail", "amazon", "splitwise", "todoist", "simple_note")
# It has no stages.
RUN_FILES = sorted({path.name for path in RUNS.glob("appworld_*.yaml")} - {"appworld_base.yaml"})
PERSON = {"first_name": "Ann", "last_name": "Bo", "email": "ann@bo.com", "phone_number": "123"}


def write_task(data, name, difficulty, solved=True):
    truth = data / "tasks" / name / "ground_truth"
    truth.mkdir(parents=True)
    (truth / "metadata.json").write_text(json.dumps({"difficulty": difficulty}))
    if solved:
        code = "# Canary String: made up\ndef solution(apis, requester):\n    pass\n"
        (truth / "compiled_solution.py").write_text(code)


@pytest.fixture
def root(tmp_path):
    data = tmp_path / "data"
    for name in ("base_dbs", "api_docs", "datasets"):
        (data / name).mkdir(parents=True)
    for number, difficulty in ((1, 1), (2, 1), (3, 3)):
        write_task(data, f"abc_{number}", difficulty)
    write_task(data, "xyz_1", 2, solved=False)
    (data / "datasets" / "train.txt").write_text("abc_1\nabc_2\nabc_3\n")
    (data / "datasets" / "dev.txt").write_text("xyz_1")
    return tmp_path


@pytest.fixture
def found(monkeypatch, root):
    """The environment variables that a user sets, and a Python that has the package."""
    monkeypatch.setenv(PYTHON, sys.executable)
    monkeypatch.setenv(ROOT, str(root))
    monkeypatch.setattr("jaxagent.envs.appworld.spec._check_package", lambda python: None)


def test_tasks_come_in_the_order_of_the_split_with_scenario_and_difficulty(found):
    spec = find_env("appworld", {})
    train = spec.tasks("train")
    assert [task.task_id for task in train] == ["abc_1", "abc_2", "abc_3"]
    assert [task.scenario for task in train] == ["abc"] * 3
    assert [task.difficulty for task in train] == [1, 1, 3]
    assert spec.max_steps == 50
    assert spec.worker["step_s"] > 100


def test_an_unknown_split_and_a_missing_one_say_what_to_do(found):
    spec = find_env("appworld", {})
    with pytest.raises(ConfigError, match="its splits are train, dev, test_normal, test_challenge"):
        spec.tasks("test")
    with pytest.raises(ConfigError, match=r"test_normal\.txt is missing; run `appworld download data"):
        spec.tasks("test_normal")


def test_damaged_data_name_the_task(found, root):
    (root / "data" / "datasets" / "test_normal.txt").write_text("abc_1\ngone_1")
    with pytest.raises(ConfigError, match="gone_1 has no readable metadata"):
        find_env("appworld", {}).tasks("test_normal")
    (root / "data" / "datasets" / "test_challenge.txt").write_text("nonsense")
    with pytest.raises(ConfigError, match="'nonsense' is no task id"):
        find_env("appworld", {}).tasks("test_challenge")


def test_a_missing_python_says_how_to_make_one(monkeypatch, root):
    monkeypatch.delenv(PYTHON, raising=False)
    with pytest.raises(ConfigError, match=r"JAXAGENT_APPWORLD_PYTHON.*pip install appworld"):
        find_env("appworld", {"root": str(root)})
    with pytest.raises(ConfigError, match="lacks the package appworld"):
        find_env("appworld", {"root": str(root), "python": sys.executable})
    with pytest.raises(ConfigError, match=r"does not run .*pip install appworld"):
        find_env("appworld", {"root": str(root), "python": str(root)})


def test_missing_data_say_how_to_fetch_them(monkeypatch, found, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(ConfigError, match=r"no base_dbs, no api_docs.*appworld download data"):
        find_env("appworld", {"root": str(empty)})
    monkeypatch.delenv(ROOT)
    with pytest.raises(ConfigError, match=r"APPWORLD_ROOT.*appworld download data"):
        find_env("appworld", {})


def test_options_are_checked(found):
    with pytest.raises(ConfigError, match="did you mean 'max_interactions'"):
        find_env("appworld", {"max_interaction": 3})


@pytest.mark.parametrize("name", RUN_FILES)
def test_run_files_are_read_up_to_the_data_that_are_missing(found, name):
    config = read_run(str(RUNS / name))
    spec = find_env(config.env.name, config.env.options)
    assert spec.tasks(config.env.train_split)
    if "test_normal" in config.eval.splits:
        with pytest.raises(ConfigError, match="appworld download data"):
            prepare(config)


def test_the_prompt_has_the_official_layout(found):
    spec = find_env("appworld", {})
    opening = spec.prompt(
        Task("abc_1", "appworld", "train"), StepResult("Do it.", info={"supervisor": PERSON})
    )
    roles = [message.role for message in opening.messages]
    assert roles == ["system"] + ["user", "assistant"] * 6 + ["user"]
    last = opening.messages[-1].content
    assert last.endswith(
        "My name is Ann Bo. My e-mail address is ann@bo.com and my phone number is 123.\nTask: Do it."
    )
    assert "complete_task(answer=" in last
    assert "show_api_doc(app_name=" in opening.messages[0].content


def test_the_example_can_be_left_out(found):
    spec = find_env("appworld", {"example": False})
    opening = spec.prompt(
        Task("abc_1", "appworld", "train"), StepResult("Do it.", info={"supervisor": PERSON})
    )
    assert [message.role for message in opening.messages] == ["system", "user"]
    assert "complete_task(answer=" in opening.messages[0].content
    assert "pantry" not in "".join(message.content for message in opening.messages)


def test_the_demonstration_gives_nothing_of_the_benchmark_away_and_every_turn_is_legal(found):
    spec = find_env("appworld", {})
    for message in demonstration():
        assert not any(app in message.content for app in APPS)
        if message.role == "assistant":
            assert not spec.parse(message).error


def test_the_first_block_is_the_action_as_in_the_official_agent(found):
    spec = find_env("appworld", {})
    two = "a\n```python\nx = 1\n```\nb\n```python\ny = 2\n```"
    assert spec.parse(Message("assistant", two)).text == "x = 1"
    assert spec.parse(Message("assistant", "```python\nx = 1")).text == "x = 1"
    assert spec.parse(Message("assistant", "I am done.")).error
    assert spec.observe("5").content == "Output:\n```\n5\n```"


def test_the_oracle_runs_the_stored_solution_without_its_canary(root):
    task = Task("abc_1", "appworld", "train")
    said = expert(root / "data", task, Random(0), 0.0).act("")
    assert said == "```python\ndef solution(apis, requester):\n    pass\nsolution(apis, requester)\n```"
    sloppy = expert(root / "data", task, Random(0), 1.0)
    assert 'status="fail"' in [sloppy.act("") for _ in range(2)][1]


def test_test_splits_have_no_oracle(root):
    with pytest.raises(ConfigError, match="no stored solution of task xyz_1"):
        expert(root / "data", Task("xyz_1", "appworld", "test_normal"), Random(0), 0.0)


def test_metrics_of_hand():
    def one(completed, interactions):
        info = {"completed": completed, "interactions": interactions}
        verdict = Evaluation(completed, 1, 2, (), info)
        return Trajectory(
            "t", Task("a_1", "appworld", "dev"), 0, Status.DONE, prompt_of_nothing(), (), (), verdict
        )

    assert metrics([one(True, 4), one(False, 8)]) == {"task_completed": 0.5, "interactions": 6.0}
    assert metrics([]) == {}


def prompt_of_nothing():
    return prompt(Task("a_1", "appworld", "dev"), StepResult("", info={"supervisor": PERSON}))
