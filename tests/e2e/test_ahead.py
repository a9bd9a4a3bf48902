"""Rollouts that run ahead: what is learnt from, in which order, and how old; killed and preempted runs lose nothing."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from jaxagent.data.tasks import TaskSource
from jaxagent.metrics import read_metrics
from jaxagent.preemption import EXIT_PREEMPTED
from jaxagent.prepare import prepare
from tests.e2e.run_files import ROOT, RUNS, small_overrides, small_run

ITERATIONS = 9
AHEAD = (
    "warm_start=[]",
    "eval.splits=[]",
    "export=false",
    "rollout.max_lag=1",
    "checkpoint.every=4",
    f"stages.0.options.iterations={ITERATIONS}",
)


def overrides(folder, *more):
    kept = [o for o in small_overrides("world_gvpo", folder) if not o.startswith("warm_start")]
    return [*kept, *AHEAD, *more]


def expected(folder):
    """The tasks of each iteration, as a run in step takes them."""
    config = small_run("world_gvpo", folder, "warm_start=[]")
    source = TaskSource(prepare(config).train_tasks, tasks=2, rollouts=4, seed=config.seed)
    return [[[plan.task.task_id, plan.n, 0] for plan in source.next(i)] for i in range(ITERATIONS)]


def start(folder, *more):
    command = [sys.executable, "-m", "tests.e2e.observing", str(folder.parent / "observed.jsonl")]
    command += [str(RUNS / "world_gvpo.yaml"), *overrides(folder, *more)]
    environment = {**os.environ, "JAX_LOG_COMPILES": "1"}
    with (folder.parent / "log").open("a") as log:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)


def observed(folder):
    return [json.loads(line) for line in (folder.parent / "observed.jsonl").read_text().splitlines()]


def wait_for(folder, iterations, process):
    path = folder.parent / "observed.jsonl"
    for _ in range(6000):
        if path.exists() and path.read_bytes().count(b"\n") >= iterations:
            return
        assert process.poll() is None, (folder.parent / "log").read_text()[-3000:]
        time.sleep(0.1)
    raise AssertionError("the run made no progress")


@pytest.fixture(scope="module", params=[1, 2])
def whole(request, tmp_path_factory):
    """On eight devices, whose programs of two threads must start in one order."""
    folder = tmp_path_factory.mktemp("ahead") / "run"
    assert start(folder, f"rollout.max_lag={request.param}").wait() == 0, (folder.parent / "log").read_text()[
        -3000:
    ]
    return folder, request.param


def test_every_task_is_learnt_from_once_in_the_order_of_a_run_in_step(whole):
    folder, _ = whole
    assert observed(folder) == expected(folder)


def test_the_lag_is_bounded_and_ends_at_every_checkpoint(whole):
    """Nothing runs ahead of iterations 4 and 8 (from 0): a checkpoint is written before them."""
    folder, lag = whole
    records = read_metrics(folder / "metrics.jsonl")
    assert [record["step"] for record in records] == list(range(ITERATIONS))
    lags = [record["async/lag_max"] for record in records]
    assert [i for i, value in enumerate(lags) if value == 0] == [0, 4, 8]
    assert max(lags) == lag
    for record in records:
        assert record["rollout/submitted"] == record["rollout/kept"] + record["rollout/dropped"] == 8
        assert "ratio/approx_kl" in record  # to the policy that sampled


def test_every_program_is_compiled_once(whole):
    """Decode has two row counts; the others have one shape."""
    folder, _ = whole
    compiled = Counter(
        re.findall(r"Finished XLA compilation of jit\((\w+)\)", (folder.parent / "log").read_text())
    )
    most = {"hand_off": 1, "prefill": 1, "decode": 2, "copy_slots": 1, "_single": 1, "_accumulate": 1}
    assert compiled["hand_off"] == compiled["prefill"] == 1
    assert {name: compiled[name] for name in most if compiled[name] > most[name]} == {}


def test_a_killed_run_learns_from_every_task_once(tmp_path):
    folder = tmp_path / "run"
    process = start(folder)
    wait_for(folder, 6, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = len(observed(folder))
    assert start(folder).wait() == 0
    seen = observed(folder)
    # It goes on from the checkpoint after four iterations: those after it are made again, those before it are not.
    assert seen[:4] + seen[before:] == expected(folder)


def test_a_preempted_run_learns_from_what_is_in_flight_and_saves(tmp_path):
    folder = tmp_path / "run"
    process = start(folder, "checkpoint.every=0")
    wait_for(folder, 2, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) == EXIT_PREEMPTED
    assert len(observed(folder)) < ITERATIONS
    assert start(folder, "checkpoint.every=0").wait() == 0
    assert observed(folder) == expected(folder)


def test_held_groups_are_learnt_from_once_and_whole(tmp_path):
    """In flight are never more than the checkpoints allow, and counts add up over the iterations."""
    folder = tmp_path / "run"
    more = ("rollout.partial=true", "rollout.quorum=0.5", "rollout.max_lag=2")
    assert start(folder, *more).wait() == 0, (folder.parent / "log").read_text()[-3000:]
    assert sorted(g for groups in observed(folder) for g in groups) == sorted(
        g for groups in expected(folder) for g in groups
    )
    records = read_metrics(folder / "metrics.jsonl")
    for record in records:
        came = record["rollout/submitted"] + record.get("rollout/held_in", 0)
        assert came == record["rollout/kept"] + record["rollout/dropped"] + record.get("rollout/held_out", 0)
    assert sum(record["rollout/submitted"] for record in records) == 8 * ITERATIONS
    assert all(record.get("rollout/held_out", 0) == 0 for record in records[3::4])  # saved after 4 and 8
    assert max(record["async/lag_max"] for record in records) <= 2
