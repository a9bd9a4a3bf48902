"""Killed, preempted or never stopped: a run ends with the same parameters, bit for bit."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxagent.errors import ConfigError
from jaxagent.preemption import EXIT_PREEMPTED
from jaxagent.run import run_training
from tests.e2e.run_files import ROOT, RUNS, small_overrides, small_run

EVERY = ("checkpoint.every=1", "eval.splits=[]", "stages.0.options.iterations=4")


def start(folder):
    """The run as its user starts it, on one device, output to a file."""
    command = [sys.executable, str(ROOT / "launch" / "tpu_run.py"), str(RUNS / "world_loop.yaml")]
    command += [*small_overrides("world_loop", folder), *EVERY]
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    with (folder.parent / f"{folder.name}.log").open("a") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def wait_for_lines(folder, lines, process):
    """Until metrics.jsonl holds so many lines."""
    path = folder / "metrics.jsonl"
    for _ in range(3000):
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            return
        assert process.poll() is None, (folder.parent / f"{folder.name}.log").read_text()[-3000:]
        time.sleep(0.1)
    raise AssertionError("the run made no progress")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert start(folder).wait() == 0
    return load_file(folder / "export" / "model.safetensors")


def assert_same(folder, expected):
    found = load_file(folder / "export" / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("lines", [1, 5], ids=["in the first stage", "in the middle of an epoch of tasks"])
def test_a_killed_run_goes_on_to_the_same_parameters(tmp_path, uninterrupted, lines):
    folder = tmp_path / "run"
    process = start(folder)
    wait_for_lines(folder, lines, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert start(folder).wait() == 0
    assert_same(folder, uninterrupted)


def test_a_preempted_run_saves_and_says_so(tmp_path, uninterrupted):
    folder = tmp_path / "run"
    process = start(folder)
    wait_for_lines(folder, 4, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == EXIT_PREEMPTED
    assert start(folder).wait() == 0
    assert_same(folder, uninterrupted)


def test_another_configuration_is_refused_in_the_same_folder(tmp_path):
    folder = tmp_path / "run"
    run_training(small_run("world_sft", folder, "eval.splits=[]"))
    with pytest.raises(ConfigError, match="different: seed"):
        run_training(small_run("world_sft", folder, "eval.splits=[]", "seed=1"))
