"""TGC, SGC, completion and failed steps on hand-made trajectories."""

import numpy as np
import pytest

from jaxagent.envs.world.metrics import world_metrics
from jaxagent.types import Action, Evaluation, ExecStatus, Prompt, Status, Step, Stop, Task, Trajectory


def trajectory(scenario: str, n: int, success: bool, *, rollout=0, difficulty=1, statuses=(), passed=None):
    task = Task(f"{scenario}_{n}", "world", "dev", scenario, difficulty)
    verdict = Evaluation(success, passed if passed is not None else (4 if success else 2), 4)
    none = np.zeros(0, np.int32), np.zeros(0, np.float32)
    steps = tuple(
        Step(k, "", "", *none, 0, Stop.STOP, Action("x"), status, "") for k, status in enumerate(statuses)
    )
    return Trajectory("t", task, rollout, Status.DONE, Prompt(()), steps, (), verdict)


def test_tgc_and_sgc():
    found = world_metrics(
        [trajectory("a", n, True) for n in (1, 2, 3)]
        + [trajectory("b", n, n != 2, difficulty=2) for n in (1, 2, 3)]
    )
    assert found["tgc"] == pytest.approx(83.333, abs=1e-3)
    assert found["sgc"] == 50.0
    assert (found["tgc_1"], found["sgc_1"], found["sgc_2"]) == (100.0, 100.0, 0.0)
    assert found["tgc_2"] == pytest.approx(66.667, abs=1e-3)
    assert found["completion"] == pytest.approx(100 * (5 + 0.5) / 6)


def test_a_missing_task_fails_its_scenario():
    assert world_metrics([trajectory("a", n, True) for n in (1, 2)])["sgc"] == 0.0


def test_repeating_one_task_does_not_complete_a_scenario():
    assert world_metrics([trajectory("a", 1, True) for _ in range(3)])["sgc"] == 0.0


def test_rollouts_are_averaged():
    found = world_metrics(
        [trajectory("a", n, True, rollout=0) for n in (1, 2, 3)]
        + [trajectory("a", n, n == 1, rollout=1) for n in (1, 2, 3)]
    )
    assert found["tgc"] == pytest.approx(66.667, abs=1e-3)
    assert found["sgc"] == 50.0


def test_failed_steps():
    statuses = (
        ExecStatus.OK,
        ExecStatus.RUNTIME_ERROR,
        ExecStatus.SYNTAX_ERROR,
        ExecStatus.INVALID,
        ExecStatus.TIMEOUT,
        ExecStatus.NONE,
    )
    found = world_metrics([trajectory("a", 1, False, statuses=statuses)])
    assert found["failed_steps"] == pytest.approx(4 / 5)  # NONE was never executed
    assert found["steps"] == 6.0


def test_nothing_gives_zeros():
    assert world_metrics([])["tgc"] == 0.0
