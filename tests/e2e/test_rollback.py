"""A collapse is rolled back, stopped, or only said; a kill in the middle of a rollback changes nothing."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxagent.metrics import read_metrics
from jaxagent.run import EXIT_COLLAPSED
from tests.e2e.collapsing import LEARNING_RATE
from tests.e2e.run_files import ROOT, RUNS, small_overrides

COLLAPSED_STAGE = (
    "warm_start=[]",
    "eval.splits=[]",
    "checkpoint.every=1",
    "stages.0.options.iterations=6",
    f"stages.0.options.learning_rate={LEARNING_RATE}",
    "alarms.collapse=[entropy_collapse]",
    "alarms.patience=2",
    "alarms.rollback.margin=0",
)


def train(folder, *overrides, how="entropy", when="never"):
    """The run on one device, to its end or its kill; returns the exit code, output beside the folder."""
    kept = [o for o in small_overrides("world_gvpo", folder) if not o.startswith("warm_start")]
    command = [sys.executable, "-m", "tests.e2e.collapsing", how, when, str(RUNS / "world_gvpo.yaml")]
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    with (folder.parent / f"{folder.name}.log").open("a") as log:
        return subprocess.run(
            [*command, *kept, *COLLAPSED_STAGE, *overrides],
            env=environment,
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode


ROLLBACK = ("alarms.on_collapse=rollback",)


@pytest.fixture(scope="module")
def went_back(tmp_path_factory):
    folder = tmp_path_factory.mktemp("back") / "run"
    assert train(folder, *ROLLBACK) == 0, (folder.parent / "run.log").read_text()[-3000:]
    return folder


def test_a_collapse_is_rolled_back_and_recorded(went_back):
    """Entropy is lost in iterations 3 and 4; 2 already ran with a suspect policy, so the run goes back to 1."""
    result = json.loads((went_back / "result.json").read_text())
    (went,) = result["rollbacks"]
    assert went == {"alarm": "entropy_collapse", "stage": 0, "left": 4, "to": 1, "step": 1, "saved": 4}
    assert result["iterations"] == 9  # four, and five more from the first
    heard = [item["alarm"] for item in result["alarms"] if item["alarm"] in ("entropy_collapse", "rollback")]
    assert heard == ["entropy_collapse", "rollback"]
    page = (went_back / "report" / "index.html").read_text()
    assert "since iteration 3" in page
    assert "learning rate x 0.5 and other random streams" in page
    console = (went_back.parent / "run.log").read_text()
    assert "ALARM entropy_collapse" in console
    assert "ROLLBACK: entropy_collapse: back from iteration 4 to 1" in console


def test_nothing_that_was_recorded_is_taken_back(went_back):
    records = read_metrics(went_back / "metrics.jsonl")
    assert [record["step"] for record in records] == list(range(9))
    assert [record["alarms/rollbacks"] for record in records] == [0] * 4 + [1] * 5
    # The same tasks under the same policy, but other random streams.
    first, again = records[1], records[4]
    assert first["data/epoch"] == again["data/epoch"]
    assert first["policy/logprob"] != again["policy/logprob"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_in_the_middle_of_a_rollback_changes_nothing(tmp_path, went_back, when):
    folder = tmp_path / "run"
    assert train(folder, *ROLLBACK, when=when) == -signal.SIGKILL
    assert train(folder, *ROLLBACK) == 0
    expected = load_file(went_back / "export" / "model.safetensors")
    found = load_file(folder / "export" / "model.safetensors")
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert json.loads((folder / "result.json").read_text())["iterations"] == 9
    assert [record["step"] for record in read_metrics(folder / "metrics.jsonl")] == list(range(9))


def test_rollbacks_are_limited(tmp_path):
    folder = tmp_path / "run"
    assert train(folder, *ROLLBACK, "alarms.rollback.limit=1", how="always") == EXIT_COLLAPSED
    assert [item["alarm"] for item in read_metrics(folder / "alarms.jsonl")].count("rollback") == 1


def test_a_divergence_is_rolled_back_too(tmp_path):
    folder = tmp_path / "run"
    assert train(folder, *ROLLBACK, how="error") == 0
    (went,) = json.loads((folder / "result.json").read_text())["rollbacks"]
    assert (went["alarm"], went["left"], went["to"]) == ("diverged", 3, 1)


def test_stop_saves_a_report_and_goes_on_only_when_asked_again(tmp_path):
    folder = tmp_path / "run"
    assert train(folder, "alarms.on_collapse=stop") == EXIT_COLLAPSED
    assert "entropy_collapse" in (folder / "report" / "index.html").read_text()
    assert not (folder / "result.json").exists()
    assert len(read_metrics(folder / "metrics.jsonl")) == 4
    assert "stopped by the alarm entropy_collapse" in (folder.parent / "run.log").read_text()
    assert train(folder, "alarms.on_collapse=stop") == 0
    assert json.loads((folder / "result.json").read_text())["iterations"] == 6


def test_a_rollback_gives_up_what_runs_ahead(tmp_path):
    """The fourth iteration ends with the fifth in flight; the start is the only checkpoint before the third."""
    folder = tmp_path / "run"
    more = ("rollout.max_lag=1", "checkpoint.every=3", "stages.0.options.iterations=7")
    assert train(folder, *ROLLBACK, *more) == 0, (folder.parent / "run.log").read_text()[-3000:]
    result = json.loads((folder / "result.json").read_text())
    assert [(went["left"], went["to"], went["saved"]) for went in result["rollbacks"]] == [(4, 0, 4)]
    records = read_metrics(folder / "metrics.jsonl")
    assert [record["step"] for record in records] == list(range(11))
    # From the start again: the same tasks, none of them skipped with what was in flight.
    assert records[4]["data/epoch"] == records[0]["data/epoch"]
