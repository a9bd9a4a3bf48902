"""Options that every policy recipe shares, in a run on the embedded world: what they leave in the log."""

import pytest

from jaxagent.metrics import read_metrics
from jaxagent.run import run_training
from jaxagent.run_file import read_run
from tests.e2e.run_files import RUNS
from tests.e2e.test_presets import shrunk


def trained(folder, name, **options):
    given = [f"stages.0.options.{key}={value}" for key, value in options.items()]
    run = read_run(RUNS / f"{name}.yaml", [*shrunk(name), *given, f"run_dir={folder}"])
    assert run_training(run) == 0
    return read_metrics(folder / "metrics.jsonl")


def test_a_correction_a_moving_reference_and_limits(tmp_path):
    """Decoder and trainer have the same weights in float32: ratios are 1, and nothing is cut, stale or an outlier."""
    records = trained(
        tmp_path / "run",
        "world_grpo",
        mismatch="{mode: token_trunc, normalise: true}",
        solved_nll=0.1,
        kl_in="loss",
        kl_reference="ema",
        grad_outlier_sigma=5.0,
        entropy_coef=0.01,  # a gradient, whatever the random policy earns
    )
    for record in records:
        assert record["is/ratio_mean"] == pytest.approx(1.0, abs=1e-3)
        assert record["is/ess"] == pytest.approx(1.0, abs=1e-4)
        assert record["is/trunc_frac"] == 0.0
        assert (record["update/steps"], record["skip/outlier"]) == (1.0, 0.0)
    assert records[0]["kl/reference_k3"] == pytest.approx(0.0, abs=1e-6)
    assert records[1]["kl/reference_k3"] > 0  # the policy has moved, the average a hundredth of it


def test_dynamic_sampling_counts_every_round(tmp_path):
    """A random policy solves nothing: three batches of 2 tasks x 4 rollouts, no group to train on, no step."""
    records = trained(tmp_path / "run", "world_dapo", mismatch="{mode: bypass}")
    for record in records:
        assert (record["refill/batches"], record["refill/missing"]) == (3.0, 2.0)
        assert record["rollout/submitted"] == 24 == record["rollout/kept"] + record["rollout/dropped"]
        assert record["skip/empty_batch"] == 1.0
        assert record["group/count"] == 6.0
