"""A SAGE run: evaluated without and with growing libraries, and stopped between two iterations to the same end."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxagent.metrics import read_metrics
from jaxagent.run import run_training
from jaxagent.runtime import Runtime
from tests.e2e.run_files import small_run

CHANGES = (
    "warm_start.0.options.iterations=1",
    "warm_start.1.pack=null",
    "stages.0.options.iterations=3",
    "stages.0.options.warmup_steps=0",
    "checkpoint.every=1",
    "eval.splits=[dev]",
    "eval.limit=6",
    "eval.sampled=false",
)


def run_of(folder):
    return small_run("world_sage", folder, *CHANGES)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert run_training(run_of(folder)) == 0
    return folder


def numbers(folder):
    """Every line's metrics, without measured seconds."""
    return [
        {
            name: value
            for name, value in record.items()
            if not name.startswith(("seconds/", "rollout/env_s", "rollout/generate_s", "time"))
        }
        for record in read_metrics(folder / "metrics.jsonl")
    ]


def test_chains_are_rolled_out_and_measured(whole):
    lines = [line for line in numbers(whole) if "chain/0/success" in line]
    assert len(lines) == 3
    for line in lines:
        assert line["rollout/submitted"] == 2 * 2 * 4  # scenarios, positions, rollouts
        assert line["group/count"] == 4
        assert {"chain/1/used_frac", "chain/1/library", "reward/skill_used"} <= set(line)


def test_an_evaluation_is_made_without_and_with_libraries(whole):
    made = json.loads((whole / "result.json").read_text())["evaluations"]
    modes = [item["mode"] for item in made if item["when"] == "sage"]
    assert modes == ["greedy", "greedy+library"]
    shown = json.loads((whole / "sage.library.json").read_text())
    assert [len(part) for part in shown["order"]] == [2, 2, 2]
    assert shown["seed"] == 0
    assert len(shown["functions"]["0"]) == 6


def test_a_stopped_run_goes_on_to_the_same_parameters(whole, tmp_path, monkeypatch):
    folder, usual = tmp_path / "run", Runtime.finish_iteration
    calls = []

    def stop(self, stages, done, metrics):
        place = usual(self, stages, done, metrics)
        calls.append(done)
        if len(calls) == 5:  # after the second iteration of chains
            raise KeyboardInterrupt
        return place

    monkeypatch.setattr(Runtime, "finish_iteration", stop)
    with pytest.raises(KeyboardInterrupt):
        run_training(run_of(folder))
    monkeypatch.setattr(Runtime, "finish_iteration", usual)
    assert run_training(run_of(folder)) == 0
    expected, found = (load_file(path / "export" / "model.safetensors") for path in (whole, folder))
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    sage = [[line for line in numbers(path) if "chain/0/success" in line] for path in (whole, folder)]
    names = ("data/epoch", "rollout/tokens", "rollout/sampled_tokens", "chain/1/functions", "reward/mean")
    assert [[line[name] for name in names] for line in sage[0]] == [
        [line[name] for name in names] for line in sage[1]
    ]
