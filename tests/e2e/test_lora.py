"""Adapters trained against a reference: stopped and resumed to the same bits, exported merged and as an adapter."""

import numpy as np
from safetensors.numpy import load_file

from jaxagent import run
from jaxagent.preemption import EXIT_PREEMPTED
from tests.e2e.run_files import StopAfter, small_run

LORA = ("model.lora={rank: 2, alpha: 4}", "stages.0.options.kl_in=loss", "stages.0.options.entropy_coef=0.1")
SHORT = ("warm_start=[]", "eval.splits=[]", "checkpoint.every=1", "stages.0.options.iterations=3")


def test_adapters_and_their_reference_survive_a_stop(tmp_path, monkeypatch):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert run.run_training(small_run("world_grpo", whole, *LORA, *SHORT)) == 0
    with monkeypatch.context() as patched:
        patched.setattr(run, "Preemption", lambda: StopAfter(stopped, 1))
        assert run.run_training(small_run("world_grpo", stopped, *LORA, *SHORT)) == EXIT_PREEMPTED
    assert not (stopped / "export").exists()
    assert run.run_training(small_run("world_grpo", stopped, *LORA, *SHORT)) == 0

    adapters = [
        run.export_run(folder, tmp_path / f"{folder.name}-adapter", form="adapter")
        for folder in (whole, stopped)
    ]
    one, other = (load_file(folder / "adapter_model.safetensors") for folder in adapters)
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(other[name], value, err_msg=name)
    assert any(np.abs(value).max() > 0 for name, value in one.items() if "lora_B" in name)

    merged = load_file(whole / "export" / "model.safetensors")
    assert not any("lora" in name for name in merged)
