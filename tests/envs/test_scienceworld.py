"""ScienceWorld: splits without Java, parsing, metrics; then the simulator: contract, oracle, faults, no orphans."""

import asyncio
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from random import Random

import pytest

from jaxagent.envs.pool import EnvPool
from jaxagent.envs.scienceworld import java
from jaxagent.envs.scienceworld.env import ScienceWorld
from jaxagent.envs.scienceworld.java import INSTALL, JAVA, Answer, World, simulator
from jaxagent.envs.scienceworld.spec import metrics as find_metrics
from jaxagent.envs.scienceworld.spec import parse
from jaxagent.envs.scienceworld.splits import VARIATIONS, split_of
from jaxagent.envs.scienceworld.worlds import Recorded
from jaxagent.envs.table import find_env
from jaxagent.errors import ConfigError, EnvFailure
from jaxagent.rewards.outcome import score
from jaxagent.rollout.demonstrate import play
from jaxagent.types import Action, Evaluation, ExecStatus, Message, Prompt, Status, Task, Trajectory
from tests.envs.contract import check_contract
from tests.envs.needs import package

needs_package = package("scienceworld", INSTALL)
needs_java = pytest.mark.skipif(shutil.which("java") is None, reason=JAVA)
SHORT = {"types": ["find-non-living-thing"], "variations": 2}  # five commands solve it


@pytest.fixture(scope="module", autouse=True)
def _end_java():
    yield
    java.close()


# --- without Java ---------------------------------------------------------------------------------------


def test_splits_have_the_published_sizes():
    assert sum(VARIATIONS.values()) == 7207
    sizes = {
        name: sum(len(split_of(n)[name]) for n in VARIATIONS.values()) for name in ("train", "dev", "test")
    }
    assert sizes == {"train": 3592, "dev": 1796, "test": 1819}
    assert split_of(14) == {"train": range(6), "dev": range(6, 9), "test": range(9, 14)}


@needs_package
@needs_java
def test_tasks_are_official_and_can_be_narrowed(monkeypatch):
    monkeypatch.setattr(java, "Simulator", None)  # nothing starts
    assert len(find_env("scienceworld", {}).tasks("test")) == 1819
    spec = find_env("scienceworld", {"types": ["boil", "melt"], "variations": 1})
    assert [task.task_id for task in spec.tasks("dev")] == ["scienceworld/boil/14", "scienceworld/melt/14"]
    with pytest.raises(ConfigError, match="train, dev and test"):
        spec.tasks("valid")
    with pytest.raises(ConfigError, match="boyl"):
        find_env("scienceworld", {"types": ["boyl"]})


@needs_package
def test_no_java_is_said_before_anything_starts(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="apt-get install"):
        find_env("scienceworld", {})


@pytest.mark.parametrize(
    ("form", "text", "command"),
    [
        ("tags", "<think>open it</think><action>open door</action>", "open door"),
        ("tags", "<think><action>wait</action></think><action> open door\n</action>", "open door"),
        ("tags", "Thought: hm\nAction: open door to kitchen", "open door to kitchen"),
        ("tags", "Action: wait\n\t ACTION:  look \n", "look"),
        ("tags", "<action>open door</action><action>wait</action>", "open door"),
        ("plain", " open door ", "open door"),
        ("plain", "0", "0"),
    ],
)
def test_parse_finds_the_command(form, text, command):
    assert parse(Message("assistant", text), form=form) == Action(text=command)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("tags", "open door"),
        ("tags", "<action></action>"),
        ("plain", ""),
        ("plain", "a\nb"),
        ("plain", "x" * 400),
    ],
)
def test_parse_reports_what_is_no_command(form, text):
    found = parse(Message("assistant", text), form=form)
    assert found.error
    assert not found.text


def test_parse_is_linear_in_what_a_policy_writes():
    """Regular expressions took seconds, in the trainer's event loop, for 20,000 newlines or tags without an end."""
    start = time.process_time()
    for text in ("\n" * 100_000, "<action>" * 50_000, "Action: a" + " " * 100_000 + "b"):
        assert parse(Message("assistant", text), form="tags").error
    assert time.process_time() - start < 1.0


def ended(name, score):
    task = Task(f"{name}/{score}", "scienceworld", "test", type=name)
    verdict = Evaluation(
        score == 100, max(score, 0), 100, info={"score": max(score, 0) / 100, "failed": score < 0}
    )
    return Trajectory("t", task, 0, Status.DONE, Prompt(()), (), (), evaluation=verdict)


@needs_package
@needs_java
def test_metrics_by_hand():
    metrics = find_env("scienceworld", {}).metrics
    found = metrics([ended("boil", 100), ended("boil", 20), ended("boil", -100), ended("melt", 60)])
    assert found == {"score": 45.0, "score_by_type": 50.0, "success": 0.25, "failed": 0.25}
    assert metrics([]) == {}


class Fake:
    """A simulator whose score is 10 a command, and which counts what it is asked."""

    def __init__(self):
        self.at, self.asked = None, 0

    def load(self, world):
        self.at = (world, ())
        return self._answer()

    def step(self, command):
        world, before = self.at
        self.at = (world, (*before, command))
        return self._answer()

    def description(self):
        return f"Your task is {self.at[0].task}."

    def gold(self, world):
        self.at = None
        self.asked += 1
        return ("a", "b")

    def _answer(self):
        self.asked += 1
        done = 10 * len(self.at[1])
        return Answer(" ".join(self.at[1]), done if "fatal" not in self.at[1] else -100, False, "room", "orb")


def test_a_record_asks_for_each_answer_once():
    fake = Fake()
    record, world = Recorded(lambda: fake), World("boil", 0, "")
    for _ in range(3):
        assert record.gold(world) == ("a", "b")
        record.load(world)
        assert record.description() == "Your task is boil."
        assert [record.step(command).score for command in ("a", "b")] == [10, 20]
    assert fake.asked == 4
    record.load(world)
    record.step("a")
    assert record.step("c").text == "a c", "what is new is asked after a replay of what was known"
    assert fake.asked == 4 + 3


def faked(monkeypatch):
    fake = Fake()
    monkeypatch.setattr("jaxagent.envs.scienceworld.env.simulator", lambda: fake)
    env = ScienceWorld("easy")
    env.reset(Task("scienceworld/boil/0", "scienceworld", "train", type="boil", meta={"variation": 0}))
    return env, fake


def test_reward_is_the_gain_in_score_and_a_fatal_mistake_scores_zero(monkeypatch):
    env, _ = faked(monkeypatch)
    assert [env.step(Action(text=c)).reward for c in ("a", "b", "fatal")] == [0.1, 0.1, -1.2]
    verdict = env.evaluate()
    assert (verdict.success, verdict.passed, verdict.total) == (False, 0, 100)
    assert verdict.info == {"score": 0, "failed": True}


def test_the_score_reward_is_a_share_of_the_score(monkeypatch):
    """`reward: score` promises a return in [0, 1], whatever the benchmark counts in."""
    env, _ = faked(monkeypatch)
    env.step(Action(text="a"))
    episode = Trajectory("t", ended("boil", 0).task, 0, Status.DONE, Prompt(()), (), (), env.evaluate())
    assert score(episode) == 0.1
    assert find_metrics([episode])["score"] == 10.0


def test_two_episodes_cannot_share_one_world(monkeypatch):
    env, fake = faked(monkeypatch)
    fake.load(World("melt", 1, "easy"))
    with pytest.raises(EnvFailure, match="another episode"):
        env.step(Action(text="a"))


# --- with Java ------------------------------------------------------------------------------------------


@needs_package
@needs_java
def test_contract_and_unknown_commands():
    spec = find_env("scienceworld", SHORT)
    task = spec.tasks("train")[0]
    played = check_contract(spec, task)
    start = played.results[0].info["score"]
    assert start == 0.08, "a step's worth of score is there before the first command"
    assert sum(result.reward for result in played.results) == pytest.approx(1 - start)
    assert played.evaluation.info["score"] == 1.0
    env = spec.make()
    first = env.reset(task)
    assert first.observation.startswith("Task Description:\nYour task is to find a")
    refused = env.step(Action(text="sing a song"))
    assert (refused.exec_status, refused.reward, refused.done) == (ExecStatus.INVALID, 0.0, False)
    assert refused.anchor == first.anchor
    assert env.evaluate().passed == 100 * start


@needs_package
@needs_java
def test_java_that_dies_is_replaced():
    first = simulator()
    first.load(World("find-non-living-thing", 0, "easy"))
    first.process.kill()
    first.process.wait()
    with pytest.raises(Exception, match="Java"):
        first.step("look around")
    assert simulator() is not first


@needs_package
@needs_java
def test_no_java_outlives_its_worker():
    spec = find_env("scienceworld", SHORT)

    async def run():
        async with EnvPool(1) as pool:
            await pool.open(spec, spec.tasks("train")[0])
            worker = pool.workers[0]
            found = children(worker.pid)
            os.kill(worker.pid, signal.SIGKILL)
            return found

    found = asyncio.run(run())
    assert len(found) == 1
    deadline = time.monotonic() + 60
    while alive(found[0]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(found[0])


def children(pid):
    shown = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(line) for line in shown.stdout.split()]


def alive(pid):
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@needs_package
@needs_java
@pytest.mark.slow
@pytest.mark.parametrize("name", VARIATIONS)
def test_splits_are_the_simulators_and_its_solutions_solve(name):
    live = simulator()
    live.load(World(name, 0, "easy"))
    split = split_of(VARIATIONS[name])
    assert live._server.getTaskMaxVariations(name) == VARIATIONS[name]
    assert list(live._server.getVariationsTrain()) == list(split["train"])
    assert list(live._server.getVariationsDev()) == list(split["dev"])
    assert list(live._server.getVariationsTest()) == list(split["test"])
    spec = find_env("scienceworld", {"types": [name], "variations": 1, "max_steps": 200})
    assert play(spec, spec.tasks("train")[0], rng=Random(0)).evaluation.success
