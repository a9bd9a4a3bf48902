"""Teachers that are kept beside the policy survive a stop; another network teaches by its folder."""

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxagent import run
from jaxagent.chat.train_tokenizer import train_tokenizer
from jaxagent.errors import ConfigError
from jaxagent.export import export_model
from jaxagent.metrics import read_metrics
from jaxagent.model.spec import ModelSpec
from jaxagent.model.transformer import create
from jaxagent.preemption import EXIT_PREEMPTED
from tests.e2e.run_files import SMALL_MODEL, StopAfter, small_run

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
        patched.setattr(run, "Preemption", lambda: StopAfter(stopped, 1))
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
    """A larger one, of the same tokenizer; one that knows fewer ids than the policy can sample is refused."""
    train_tokenizer(["print(apis.notes.show_notes())\n"] * 40, 300).save(tmp_path / "tokenizer")
    sizes = ModelSpec.from_file(SMALL_MODEL)
    for name, spec in (("teacher", replace(sizes, layers=3)), ("small", replace(sizes, vocab=400))):
        export_model(tmp_path / name, *create(spec, seed=9), tokenizer=tmp_path / "tokenizer")
    overrides = (
        f"tokenizer.source={tmp_path / 'tokenizer'}",
        "stages.0.options={iterations: 2, tasks: 2, group_size: 4, reward: success, learning_rate: 3.0e-5}",
        "stages.0.options.teacher=checkpoint",
        "stages.0.options.context=none",
    )

    def config(name):
        checkpoint = f"stages.0.options.checkpoint={tmp_path / name}"
        return small_run("world_opd", tmp_path / f"run-{name}", *SHORT, *overrides, checkpoint)

    with pytest.raises(ConfigError, match="knows 400 token ids, the policy may sample 512"):
        run.run_training(config("small"))
    assert run.run_training(config("teacher")) == 0
    for record in read_metrics(tmp_path / "run-teacher" / "metrics.jsonl"):
        assert record["teacher/taught"] == record["rollout/kept"]
        assert record["update/steps"] == 1
        assert 0 < record["teacher/entropy"] < np.log(512)
        assert record["distill/k3"] > 0
