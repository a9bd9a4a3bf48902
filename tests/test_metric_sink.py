import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxagent.errors import ConfigError, DataError
from jaxagent.metrics import JsonlWriter, MetricSink, TensorBoardWriter, WandbWriter, read_metrics

ROOT = Path(__file__).parents[1]


def test_one_line_a_call_with_labels_and_any_kind_of_number(tmp_path):
    with MetricSink(tmp_path) as sink:
        sink.log(0, {"a": 1, "b": np.float32(0.5), "c": np.array(2)}, stage="rl")
        sink.log(0, {"eval/dev/tgc": 50.0})
    first, second = read_metrics(tmp_path / "metrics.jsonl")
    assert (first["step"], first["stage"], first["a"], first["b"], first["c"]) == (0, "rl", 1.0, 0.5, 2.0)
    assert second["eval/dev/tgc"] == 50.0


def test_values_that_are_not_finite_become_null_and_are_counted(tmp_path):
    with MetricSink(tmp_path) as sink:
        sink.log(1, {"loss": float("nan"), "norm": float("inf"), "ok": 1.0})
        sink.log(2, {"loss": float("nan")})
        assert sink.nonfinite == {"loss": 2, "norm": 1}
    raw = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in raw
    assert "Infinity" not in raw
    record = read_metrics(tmp_path / "metrics.jsonl")[0]
    assert record["loss"] is None
    assert record["metrics/nonfinite"] == 2
    assert record["ok"] == 1.0


def test_going_on_repeats_no_step(tmp_path):
    with MetricSink(tmp_path) as sink:
        for step in range(6):
            sink.log(step, {"a": float(step)})
    with MetricSink(tmp_path, after=3) as sink:
        for step in range(4, 8):
            sink.log(step, {"a": 10.0 + step})
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert [r["step"] for r in records] == list(range(8))
    assert [r["a"] for r in records] == [0, 1, 2, 3, 14, 15, 16, 17]


def test_what_will_be_measured_again_is_not_recorded_twice(tmp_path):
    """A kill between an evaluation and the next checkpoint: its lines bear the step that was finished before."""
    path = tmp_path / "metrics.jsonl"
    with MetricSink(tmp_path) as sink:
        for step, when in ((1, "left by a rollback"), (3, ""), (3, "rl:2"), (3, "rl:4"), (4, "")):
            sink.log(step, {"a": 1.0}, **({"when": when} if when else {}))
    JsonlWriter(path, after=3, measured={"rl:2"}).close()
    assert [record.get("when") for record in read_metrics(path)] == ["left by a rollback", None, "rl:2"]
    JsonlWriter(path, after=-1, measured={"rl:2"}).close()  # measured before the first iteration
    assert [record.get("when") for record in read_metrics(path)] == ["rl:2"]


def test_a_new_run_starts_a_new_record(tmp_path):
    for value in (1.0, 2.0):
        with MetricSink(tmp_path) as sink:
            sink.log(0, {"a": value})
    assert [r["a"] for r in read_metrics(tmp_path / "metrics.jsonl")] == [2.0]


def test_a_line_cut_by_a_kill_is_left_out_and_cleared(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0, "a": 1}\n{"step": 1, "a"')
    assert [r["step"] for r in read_metrics(path)] == [0]
    writer = JsonlWriter(path, after=0)
    writer.write(1, {"a": 2.0}, {})
    writer.close()
    assert [r["step"] for r in read_metrics(path)] == [0, 1]


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\nrubbish\n{"step": 1}\n')
    with pytest.raises(DataError, match="line 2"):
        read_metrics(path)


def test_readable_after_kill_9(tmp_path):
    code = (
        "import os, signal, sys; from jaxagent.metrics import MetricSink; sink = MetricSink(sys.argv[1])\n"
        "for step in range(5): sink.log(step, {'a': 1.0})\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run(
        [sys.executable, "-c", code, tmp_path], env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False
    )
    assert [r["step"] for r in read_metrics(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3, 4]


def test_text_is_refused_with_advice(tmp_path):
    with MetricSink(tmp_path) as sink, pytest.raises(DataError, match=r"'stage' is 'rl'.*label"):
        sink.log(0, {"stage": "rl"})


class Listing:
    def __init__(self):
        self.seen = []

    def write(self, step, metrics, labels):
        self.seen.append((step, dict(metrics), dict(labels)))

    def close(self):
        self.seen.append("closed")


def test_every_writer_sees_the_same(tmp_path):
    one, two = Listing(), Listing()
    with MetricSink(tmp_path, writers=[one, two]) as sink:
        sink.log(3, {"a": 1.0}, stage="x")
    assert one.seen == two.seen == [(3, {"a": 1.0}, {"stage": "x"}), "closed"]
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_files_hold_the_values(tmp_path):
    tensorboardx = pytest.importorskip("tensorboardX")
    writer = TensorBoardWriter(tmp_path)
    writer.write(4, {"reward/mean": 0.25, "bad": None}, {})
    writer.close()
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    assert b"reward/mean" in content
    assert b"bad" not in content
    assert np.float32(0.25).tobytes() in content
    assert tensorboardx.__name__ == "tensorboardX"


class FakeWandb:
    """The part of wandb's interface that the writer uses; remembers what was asked."""

    def __init__(self):
        self.runs, self.logged = [], []
        self.util = self

    def generate_id(self):
        return f"id{len(self.runs)}"

    def init(self, **kwargs):
        self.runs.append(kwargs)
        return self

    def define_metric(self, name, *, step_metric):
        assert (name, step_metric) == ("*", "step")

    def log(self, values):
        self.logged.append(values)

    def finish(self):
        self.logged.append("finished")


def test_wandb_goes_on_in_the_same_page(tmp_path, monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for step in (0, 1):
        writer = WandbWriter(tmp_path, project="p", config={"a": 1})
        writer.write(step, {"x": 0.5, "bad": None}, {"stage": "rl"})
        writer.close()
    assert [run["id"] for run in fake.runs] == ["id0", "id0"]
    assert fake.runs[0]["resume"] == "allow"
    assert fake.logged[0] == {"step": 0, "stage": "rl", "x": 0.5}


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"jaxagent\[wandb\]"):
        WandbWriter(tmp_path, project="p")
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ConfigError, match=r"jaxagent\[tensorboard\]"):
        TensorBoardWriter(tmp_path)


def test_json_lines_hold_no_surprise(tmp_path):
    with MetricSink(tmp_path) as sink:
        sink.log(0, {"a": 0.1})
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert set(line) == {"step", "time", "a"}


def test_a_folder_that_vanishes_is_said_and_not_written_past(tmp_path):
    """The open file goes on taking lines that nobody can read any more."""
    sink = MetricSink(tmp_path / "run")
    sink.log(0, {"a": 1.0})
    (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.raises(DataError, match="run was moved or removed while it was written to"):
        sink.log(1, {"a": 2.0})
    sink.close()
    assert len(read_metrics(tmp_path / "moved" / "metrics.jsonl")) == 1


def test_bytes_that_are_no_text_are_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 0}\n\xff\xfe\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2"):
        read_metrics(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize("line", ["5", "[]", '{"no": 1}'])
def test_a_line_without_a_step_is_named(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 1"):
        JsonlWriter(tmp_path / "metrics.jsonl", after=3)
