from dataclasses import replace

import numpy as np
import pytest

from jaxagent.errors import DataError
from jaxagent.eval.intervals import bootstrap, interval, wilson
from jaxagent.eval.metrics import (
    avg_at_k,
    best_at_k,
    best_of_k,
    pass_at_k,
    pass_hat_k,
    record_metrics,
    scenario_scores,
    task_records,
)
from jaxagent.types import Evaluation
from tests.made_episodes import make_task, make_trajectory


def scenarios(verdicts, rollout=0):
    """{"A": [1, 0, 1]} -> (tasks, trajectories); None is a task whose rollout was dropped."""
    tasks, trajectories = [], []
    for scenario, solved in verdicts.items():
        for i, success in enumerate(solved):
            task = make_task(f"{scenario}_{i}", scenario=scenario, difficulty=i + 1, type=f"kind{i % 2}")
            tasks.append(task)
            if success is not None:
                trajectories.append(make_trajectory(float(success), task=task, rollout=rollout))
    return tasks, trajectories


def measure(verdicts):
    tasks, trajectories = scenarios(verdicts)
    return record_metrics(task_records(trajectories, tasks))


def test_tgc_and_sgc():
    out = measure({"A": [1, 1, 1], "B": [1, 0, 1]})
    assert out["tgc"] == pytest.approx(83.333333)
    assert out["sgc"] == 50.0
    assert out["completion"] == pytest.approx(0.833333)
    assert out["missing"] == 0
    assert (out["tgc_difficulty_1"], out["tgc_difficulty_2"], out["tgc_type_kind1"]) == (100.0, 50.0, 50.0)
    assert (out["sgc_difficulty_1"], out["sgc_difficulty_2"]) == (100.0, 50.0)
    assert (out["pass_at_1"], out["pass_hat_1"]) == pytest.approx((0.833333, 0.833333))
    assert "pass_at_2" not in out


def test_a_missing_task_counts_as_failure():
    out = measure({"A": [1, 1, None], "B": [1, 1, 1]})
    assert out["sgc"] == 50.0
    assert out["tgc"] == pytest.approx(100 * 5 / 6)
    assert out["missing"] == 1
    nothing = measure({"A": [None, None, None]})
    assert (nothing["tgc"], nothing["sgc"], nothing["missing"]) == (0.0, 0.0, 3)


def test_sgc_joins_rollouts_by_their_number():
    tasks, first = scenarios({"A": [1, 0]}, rollout=0)
    _, second = scenarios({"A": [0, 1]}, rollout=1)
    _, third = scenarios({"A": [1, 1]}, rollout=2)
    _, fourth = scenarios({"A": [1, None]}, rollout=3)
    records = task_records(first + second + third + fourth, tasks)
    assert scenario_scores(records).tolist() == [0.25]


def test_tasks_without_scenario_stand_for_themselves():
    tasks = [make_task(f"t{i}", scenario="") for i in range(2)]
    trajectories = [make_trajectory(float(i), task=task) for i, task in enumerate(tasks)]
    assert record_metrics(task_records(trajectories, tasks))["sgc"] == 50.0


def test_k_samples():
    counts = (8, 6, 1, 0)
    score = np.array([[1.0] * c + [0.0] * (8 - c) for c in counts])
    assert avg_at_k(score) == 0.46875
    assert best_at_k(score) == 0.75
    assert np.mean([pass_hat_k(8, c, 2) for c in counts]) == pytest.approx(0.383929, abs=1e-6)


@pytest.mark.parametrize(
    ("k", "at", "hat"), [(1, 0.25, 0.75), (2, 0.464286, 0.535714), (4, 0.785714, 0.214286), (8, 1.0, 0.0)]
)
def test_pass_at_k_is_unbiased(k, at, hat):
    assert pass_at_k(8, 2, k) == pytest.approx(at, abs=1e-6)
    assert pass_hat_k(8, 6, k) == pytest.approx(hat, abs=1e-6)


def test_drawing_with_replacement_would_be_too_low():
    """2 of 8 solved, 4 drawn: 1 - (1 - 2/8)^4 = .683594 instead of .785714."""
    naive = 1 - (1 - 2 / 8) ** 4
    assert naive == pytest.approx(0.683594, abs=1e-6)
    assert pass_at_k(8, 2, 4) == pytest.approx(0.785714, abs=1e-6)


def test_one_of_four_is_certain_to_be_among_four():
    assert pass_at_k(4, 1, 4) == 1.0


def test_k_above_n_is_undefined():
    for function in (pass_at_k, pass_hat_k):
        with pytest.raises(DataError, match="k=10 is undefined for 1 samples"):
            function(1, 1, 10)
    with pytest.raises(DataError, match="9 of 8"):
        pass_at_k(8, 9, 1)


def test_pass_at_k_is_reported_as_far_as_every_task_has_samples():
    task = make_task("t")
    trajectories = [make_trajectory(float(i == 0), task=task, rollout=i) for i in range(5)]
    out = record_metrics(task_records(trajectories, [task]))
    assert out["pass_at_4"] == pytest.approx(0.8)
    assert "pass_at_8" not in out


def test_success_is_the_verdict_not_the_return():
    task = make_task("t")
    cheated = make_trajectory(1.0, task=task, success=False, tests=(3, 4))
    out = record_metrics(task_records([cheated], [task]))
    assert out["tgc"] == 0
    assert out["completion"] == 0.75


def test_an_environment_without_unit_tests():
    trajectory = make_trajectory(1.0, tests=(0, 0))
    assert trajectory.evaluation == Evaluation(True, 0, 0)
    assert task_records([trajectory], [trajectory.task])[0].completion == (1.0,)


def test_a_task_of_another_split_is_refused():
    with pytest.raises(DataError, match="'t0' was evaluated"):
        task_records([make_trajectory()], [make_task("other")])
    with pytest.raises(DataError, match="no tasks"):
        record_metrics([])


def test_wilson_against_known_values():
    assert wilson(50, 100) == pytest.approx((0.403832, 0.596168), abs=1e-6)
    assert wilson(0, 10) == pytest.approx((0.0, 0.277533), abs=1e-6)
    assert wilson(10, 10)[1] == 1.0
    assert wilson(0, 0) == (0.0, 1.0)


def test_bootstrap_covers_the_normal_interval_and_repeats():
    value = np.random.default_rng(1).random(200)
    low, high = bootstrap(value)
    half = 1.96 * value.std() / np.sqrt(200)
    assert (low, high) == pytest.approx((value.mean() - half, value.mean() + half), abs=0.006)
    assert bootstrap(value) == (low, high)


def test_interval_picks_by_kind_of_value():
    assert interval(np.array([1.0, 1.0, 1.0, 1.0])) == wilson(4, 4)
    half = np.array([0.5, 1.0, 0.25])
    assert interval(half) == bootstrap(half)


def test_best_of_k_is_unbiased_and_is_pass_at_k_for_verdicts():
    assert best_of_k([0.0, 1.0, 0.0, 0.0], 4) == 1.0  # drawing with replacement would say 0.684
    assert best_of_k([0.2, 0.4, 0.9], 1) == pytest.approx(0.5)
    assert best_of_k([0.9, 0.2, 0.4], 2) == pytest.approx((0.4 + 0.9 + 0.9) / 3)
    for k in range(1, 9):
        assert best_of_k([True] * 2 + [False] * 6, k) == pytest.approx(pass_at_k(8, 2, k))
    with pytest.raises(DataError, match="k=3 is undefined for 2"):
        best_of_k([1.0, 0.0], 3)


def test_several_samples_give_avg_best_and_the_deviation_of_runs():
    tasks = [make_task(f"t{i}", scenario="") for i in range(4)]
    counts = (8, 6, 1, 0)
    trajectories = [
        make_trajectory(float(i < c), task=task, rollout=i)
        for task, c in zip(tasks, counts)
        for i in range(8)
    ]
    out = record_metrics(task_records(trajectories, tasks))
    assert out["avg_at_8"] == 0.46875
    assert out["best_at_8"] == 0.75
    assert out["pass_hat_2"] == pytest.approx(0.383929, abs=1e-6)
    runs = [0.75] + [0.5] * 5 + [0.25] * 2
    assert out["tgc_std"] == pytest.approx(100 * np.std(runs, ddof=1))


def test_a_missing_task_can_be_left_out():
    tasks, trajectories = scenarios({"A": [1, 1, None], "B": [1, 0, 1], "C": [1, 1, 1]})
    out = record_metrics(task_records(trajectories, tasks), missing_fails=False)
    assert (out["tasks"], out["missing"]) == (9, 1)
    assert out["tgc"] == pytest.approx(100 * 7 / 8)
    assert out["sgc"] == 50.0  # of A nobody knows
    assert out["completion"] == pytest.approx(7 / 8)
    assert out["tgc_difficulty_3"] == 100.0
    nothing = record_metrics(task_records([], tasks), missing_fails=False)
    assert nothing == {"tasks": 9.0, "missing": 9.0}


def test_a_missing_rollout_can_be_left_out_of_scenarios():
    tasks, first = scenarios({"A": [1, 0]}, rollout=0)
    _, second = scenarios({"A": [1, 1]}, rollout=1)
    _, third = scenarios({"A": [1, None]}, rollout=2)
    records = task_records(first + second + third, tasks)
    assert scenario_scores(records, missing_fails=False).tolist() == [0.5]
    assert scenario_scores(records).tolist() == [1 / 3]


def test_the_benchmarks_own_score():
    """WebShop's example: rewards 1, .75, .5, .025 -> score 56.875, success 25."""
    rewards = (100.0, 75.0, 50.0, 2.5)
    tasks = [make_task(f"t{i}", scenario="") for i in range(4)]
    trajectories = [
        replace(t, evaluation=replace(t.evaluation, info={"score": r}))
        for r, t in zip(rewards, (make_trajectory(float(i == 0), task=task) for i, task in enumerate(tasks)))
    ]
    out = record_metrics(task_records(trajectories, tasks))
    assert out["task_score"] == 56.875
    assert out["task_score_low"] < 56.875 < out["task_score_high"]
    assert out["tgc"] == 25
    twice = trajectories + [
        replace(t, rollout=1, evaluation=Evaluation(False, 0, 4, info={"score": 0})) for t in trajectories
    ]
    assert record_metrics(task_records(twice, tasks))["task_score_best_at_2"] == 56.875
    one_without = [*trajectories[:3], make_trajectory(task=tasks[3])]
    assert "task_score" not in record_metrics(task_records(one_without, tasks))
