"""Whole splits, seldom: the oracle, an agent that does nothing, and the official command on what was kept.

    JAXAGENT_APPWORLD_PYTHON=… APPWORLD_ROOT=… pytest -m slow -s tests/envs/appworld/test_sweep.py

About 1.5 s of processor time a task.
"""

import json
import subprocess
from random import Random

import pytest

from jaxagent.envs.protocol import EnvSpec
from jaxagent.eval.metrics import record_metrics, task_records
from jaxagent.rollout.demonstrate import Played, play
from jaxagent.types import Evaluation, Status, Task, Trajectory
from tests.envs.appworld import real

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]


def as_trajectory(played: Played) -> Trajectory:
    done = Status.DONE if played.results[-1].done else Status.STEP_LIMIT
    name = f"{played.task.task_id}:0"
    return Trajectory(name, played.task, 0, done, played.prompt, (), (), evaluation=played.evaluation)


def do_nothing(spec: EnvSpec, task: Task) -> Evaluation:
    env = spec.make()
    try:
        env.reset(task)
        return env.evaluate()
    finally:
        env.close()


@pytest.mark.parametrize("split", ["dev", "train"])
def test_oracle_solves_all_but_the_known_and_the_official_command_agrees(split):
    spec = real.spec(experiment=f"oracle-{split}", step_seconds=1000)
    tasks = spec.tasks(split)
    played = [play(spec, task, rng=Random(0)) for task in tasks]
    failed = {episode.task.task_id for episode in played if not episode.evaluation.success}
    ours = record_metrics(task_records([as_trajectory(episode) for episode in played], tasks))
    print(
        f"\n{split}: oracle {len(tasks) - len(failed)}/{len(tasks)}, TGC {ours['tgc']:.1f} SGC {ours['sgc']:.1f}"
    )
    assert failed <= real.UNSOLVED
    experiment = f"oracle-{split}/rollout_0"
    command = [real.python().with_name("appworld"), "evaluate", experiment, split, "--root", str(real.root())]
    subprocess.run(command, check=True)
    report = real.root() / "experiments" / "outputs" / experiment / "evaluations" / f"{split}.json"
    official = json.loads(report.read_text())
    assert official["aggregate"]["task_goal_completion"] == round(ours["tgc"], 1)
    assert official["aggregate"]["scenario_goal_completion"] == round(ours["sgc"], 1)
    verdicts = {episode.task.task_id: episode.evaluation.success for episode in played}
    assert {name: one["success"] for name, one in official["individual"].items()} == verdicts


@pytest.mark.parametrize("split", ["dev", "train"])
def test_doing_nothing_solves_nothing(split):
    spec = real.spec()
    tasks = spec.tasks(split)
    solved = [task.task_id for task in tasks if do_nothing(spec, task).success]
    print(f"\n{split}: no-op {len(solved)}/{len(tasks)}")
    assert not solved
