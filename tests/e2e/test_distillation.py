"""Teachers that are kept beside the policy survive a stop; another network teaches by its folder."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxagent import run
from jaxagent.metrics import read_metrics
from jaxagent.preemption import EXIT_PREEMPTED
from tests.e2e.run_files import small_run
from tests.e2e.test_lora import StopAfterOneLine

SHORT = (
    "warm_start=[]",
    "eval.splits=[]",
    "checkpoint.every=1",
    "stages.0.options.iterations=3",
    "stages.0.pack=null",
)
AGAIN = ("stages.0.options.pool=2", "stages.0.options.skill_chars=40")  # the same two tasks every iteration
EMA = ("stages.0.options.teacher=ema", "stages.0.options.decay=0.5")


def exported(folder):
    return load_file(folder / "export" / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "overrides"),
    [("world_opd", EMA), ("world_skill_sd_off_frozen", ("stages.0.options.lambda_=1",))],
    ids=["average", "frozen sampler"],
)
def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path, monkeypatch, name, overrides):
    """The frozen sampler's first rollouts after the stop are not the policy's: they prove nothing about the decoder."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert run.run_training(small_run(name, whole, *SHORT, *AGAIN, *overrides)) == 0
    with monkeypatch.context() as patched:
        patched.setattr(run, "Preemption", lambda: StopAfterOneLine(stopped))
        assert run.run_training(small_run(name, stopped, *SHORT, *AGAIN, *overrides)) == EXIT_PREEMPTED
    assert run.run_training(small_run(name, stopped, *SHORT, *AGAIN, *overrides)) == 0
    one, other = exported(whole), exported(stopped)
    for tensor, value in one.items():
        np.testing.assert_array_equal(other[tensor], value, err_msg=tensor)
    records = read_metrics(stopped / "metrics.jsonl")
    assert records[-1]["skills/taught_frac"] > 0
    assert records[-1]["distill/log_ratio"] != 0
    if name == "world_opd":
        assert records[-1]["teacher/entropy"] > 0
    else:
        assert 0 < records[-1]["distill/ess"] < 1


def test_another_network_teaches(tmp_path):
    teacher = tmp_path / "teacher"
    assert run.run_training(small_run("world_sft", teacher)) == 0
    overrides = (
        f"tokenizer.source={teacher / 'tokenizer'}",
        "stages.0.options.teacher=checkpoint",
        "stages.0.options.context=none",
        f"stages.0.options.checkpoint={teacher / 'export'}",
    )
    assert run.run_training(small_run("world_opd", tmp_path / "run", *SHORT, *overrides)) == 0
    for record in read_metrics(tmp_path / "run" / "metrics.jsonl"):
        assert record["teacher/taught"] == record["rollout/kept"]
        assert record["distill/k3"] > 0
