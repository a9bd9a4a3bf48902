"""A run with a value function: stopped and resumed to the same bits, exported without the head."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxagent import run
from jaxagent.checkpoint import Checkpointer
from jaxagent.metrics import read_metrics
from jaxagent.preemption import EXIT_PREEMPTED
from tests.e2e.run_files import StopAfter, small_run
from tests.e2e.test_presets import shrunk

BARE = ("checkpoint.every=1", "export=true", "model.critic={hidden: [8]}", "stages.1.options.minibatch=4")
# A policy that cannot act yet pays for its words, which is enough to learn from.
LENGTH = "{outcome: success, length: {target: 1, rate: 0.004, unit: action_tokens}}"
PENALTY = tuple(f"stages.{i}.options.reward={LENGTH}" for i in (0, 1))
LORA = ("model.lora={rank: 2, alpha: 4}", "stages.1.options.bootstrap_truncated=true")


def config(folder, *more):
    overrides = [*shrunk("world_ppo_token"), *BARE, *PENALTY, *more]
    return small_run("world_ppo_token", folder, *overrides)


def arrays(folder):
    """Every array of the newest checkpoint, by name."""
    found = Checkpointer(folder / "checkpoints")
    path, record = found._whole(None)
    template = {
        name: np.zeros(shape, dtype) if shape else np.zeros((), dtype)
        for name, (shape, dtype) in record["leaves"].items()
    }
    return found._load(path, record, template).device_state


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert run.run_training(config(folder, *LORA)) == 0
    return folder


@pytest.mark.parametrize("lines", [1, 3], ids=["while values are learnt", "in the middle of PPO"])
def test_the_head_and_its_optimiser_survive_a_stop(tmp_path, monkeypatch, whole, lines):
    stopped = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(run, "Preemption", lambda: StopAfter(stopped, lines))
        assert run.run_training(config(stopped, *LORA)) == EXIT_PREEMPTED
    assert run.run_training(config(stopped, *LORA)) == 0
    one, other = arrays(whole), arrays(stopped)
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(other[name], value, err_msg=name)
    for part in ("critic/out", "critic/hidden0_bias", "lora/q_b"):
        learnt = [value for name, value in one.items() if part in name]
        assert learnt, part
        assert all(np.abs(value).max() > 0 for value in learnt), part


def test_the_first_stage_teaches_the_head_alone_and_the_second_both(whole):
    values, more, first, second = read_metrics(whole / "metrics.jsonl")
    assert (values["stage"], first["stage"]) == ("values", "ppo")
    assert "loss/pg" not in values
    assert {"critic/loss", "value/mean"} <= values.keys()
    assert {"loss/pg", "critic/clipfrac", "value/mean"} <= first.keys()
    assert more["update/grad_norm"] > 0
    assert second["loss/value"] >= 0


def test_the_export_has_no_head(whole):
    tensors = load_file(whole / "export" / "model.safetensors")
    assert tensors
    assert not any("critic" in name for name in tensors)
    assert json.loads((whole / "result.json").read_text())["iterations"] == 4


def test_a_checkpoint_with_a_head_is_exported_again(tmp_path, whole):
    again = run.export_run(whole, tmp_path / "again", form="merged")
    one, other = (load_file(folder / "model.safetensors") for folder in (whole / "export", again))
    for name, value in one.items():
        np.testing.assert_array_equal(other[name], value, err_msg=name)
