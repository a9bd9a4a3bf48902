"""Paired comparisons against numbers worked out by hand."""

import json
from dataclasses import asdict
from statistics import NormalDist

import numpy as np
import pytest

from jaxagent.errors import DataError
from jaxagent.eval.compare import bonett_price, compare, mcnemar, paired, sign_flip
from jaxagent.eval.intervals import blocks, bootstrap
from jaxagent.eval.metrics import record_metrics, task_records
from jaxagent.eval.runner import EvalResult
from tests.made_episodes import make_task, make_trajectory


def test_mcnemar():
    assert mcnemar(8, 1) == mcnemar(1, 8) == 0.0390625
    assert mcnemar(5, 0) == 0.0625
    assert mcnemar(3, 3) == 1.0
    assert mcnemar(0, 0) == 1.0


def test_bonett_price():
    """16 won, 4 lost of 100: (17 - 5) / 102 -+ 1.96 sqrt((22/102 - (12/102)^2) / 102)."""
    low, high = bonett_price(16, 4, 100)
    half = 1.959964 * np.sqrt((22 / 102 - (12 / 102) ** 2) / 102)
    assert (low, high) == pytest.approx((12 / 102 - half, 12 / 102 + half), abs=1e-6)
    assert bonett_price(0, 0, 10)[0] < 0 < bonett_price(0, 0, 10)[1]


def test_sign_flips_of_few_tasks_are_all_counted():
    assert sign_flip(np.array([0.5, 0.25, 0.0, 0.125])) == 2 / 8
    assert sign_flip(np.array([0.1, 0.1, 0.1, -0.1])) == 10 / 16
    assert sign_flip(np.zeros(4)) == 1.0


def test_sign_flips_of_many_tasks_agree_with_the_normal_law_and_repeat():
    value = np.random.default_rng(2).normal(0.2, 1.0, 100)
    z = value.sum() / np.sqrt((value**2).sum())
    assert sign_flip(value) == pytest.approx(2 * (1 - NormalDist().cdf(abs(z))), abs=0.01)
    assert sign_flip(value) == sign_flip(value)


def test_shares_and_means_take_their_own_tests():
    a, b = np.array([1.0, 1, 0, 1, 0]), np.array([1.0, 0, 0, 0, 0])
    shares = paired("success", a, b)
    assert (shares.a, shares.b, shares.difference) == pytest.approx((0.6, 0.2, -0.4))
    assert (shares.wins, shares.losses, shares.p, shares.test) == (0, 2, 0.5, "McNemar, exact")
    means = paired("success", a / 2, b)
    assert means.test == "sign flips"
    assert means.low <= means.difference <= means.high


def test_paired_is_sharper_than_apart():
    """Tasks of very different difficulty, the same small gain on each."""
    a = np.linspace(0, 0.9, 40)
    found = paired("score", a, a + 0.05 + 0.01 * np.sin(np.arange(40)))
    assert found.high - found.low < 0.01
    assert found.p < 0.001


def write(path, verdicts, *, split="dev", mode="greedy", turns=1):
    tasks = [make_task(name, scenario="") for name in verdicts]
    trajectories = [
        make_trajectory(float(solved), task=task, steps=["ok"] * turns)
        for task, solved in zip(tasks, verdicts.values())
        if solved is not None
    ]
    records = task_records(trajectories, tasks)
    result = EvalResult(split, mode, 1, record_metrics(records), tuple(records), {}, 1.0)
    path.mkdir(parents=True)
    whole = {"policy": path.name, "settings": {}, "evaluations": [{"when": path.name, **asdict(result)}]}
    (path / "result.json").write_text(json.dumps(whole))
    result.write(path / "evaluations" / "start-dev-greedy.json")
    return path


def test_two_folders_over_their_common_tasks(tmp_path):
    a = write(tmp_path / "a", {"t0": 1, "t1": 0, "t2": None, "t3": 1}, turns=2)
    b = write(tmp_path / "b", {"t0": 1, "t1": 1, "t2": 1, "t4": 0})
    (found,) = compare(a, b)
    assert (found.tasks, found.only_a, found.only_b) == (2, 1, 2)
    by_name = {measure.name: measure for measure in found.measures}
    assert set(by_name) == {"success", "completion", "turns"}
    assert (by_name["success"].a, by_name["success"].b) == (0.5, 1.0)
    assert by_name["turns"].difference == -1.0


def test_the_files_of_a_training_run_are_taken_too(tmp_path):
    a = write(tmp_path / "a", {"t0": 1, "t1": 0})
    b = write(tmp_path / "b", {"t0": 1, "t1": 0}, mode="sampled")
    (found,) = compare(a / "evaluations" / "start-dev-greedy.json", b)
    assert (found.mode_a, found.mode_b) == ("greedy", "sampled")
    assert found.measures[0].p == 1.0


def test_what_cannot_be_compared_is_refused(tmp_path):
    a = write(tmp_path / "a", {"t0": 1})
    with pytest.raises(DataError, match="no split in common"):
        compare(a, write(tmp_path / "b", {"t0": 1}, split="test"))
    with pytest.raises(DataError, match="no finished task in common"):
        compare(a, write(tmp_path / "c", {"t9": 1}))
    with pytest.raises(DataError, match="cannot be read"):
        compare(a, tmp_path / "nowhere")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "settings.json").write_text("{}")
    with pytest.raises(DataError, match="has not ended; start its command again"):
        compare(a, tmp_path / "begun")
    (tmp_path / "old.json").write_text(json.dumps({"evaluations": [{"split": "dev"}]}))
    with pytest.raises(DataError, match="holds no task records"):
        compare(a, tmp_path / "old.json")
    (tmp_path / "half.json").write_text(json.dumps({"split": "dev", "mode": "greedy", "records": [{"a": 1}]}))
    with pytest.raises(DataError, match="holds no task records"):
        compare(a, tmp_path / "half.json")
    (tmp_path / "odd.json").write_text(json.dumps({"evaluations": 3}))
    with pytest.raises(DataError, match="holds no task records"):
        compare(a, tmp_path / "odd.json")


def test_two_environments_whose_tasks_share_names_are_not_compared(tmp_path):
    folders = [write(tmp_path / name, {"0": 1, "1": 0}) for name in ("doors", "world")]
    for folder in folders:
        whole = json.loads((folder / "result.json").read_text())
        whole["settings"] = {"env": {"name": folder.name}}
        (folder / "result.json").write_text(json.dumps(whole))
    with pytest.raises(DataError, match=r"is of environment 'doors' and .* of 'world'"):
        compare(*folders)


def test_many_tasks_are_resampled_in_blocks(monkeypatch):
    """The same numbers whatever the size of a block; the whole of 50,000 tasks would be 4 GB."""
    value_P = np.random.default_rng(1).normal(0.05, 1, 300)
    whole = bootstrap(value_P), sign_flip(value_P)
    assert blocks(10_000, 300, 1 << 18) == [873] * 11 + [397]
    monkeypatch.setattr(blocks, "__defaults__", (1 << 14,))
    assert (bootstrap(value_P), sign_flip(value_P)) == whole
