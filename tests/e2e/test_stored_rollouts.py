"""Rollouts that a run keeps are scored again and trained on again with another method; a crash changes none of it."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxagent import run
from jaxagent.cli import main
from jaxagent.data.rollout_store import FILE, RolloutStore
from jaxagent.errors import ConfigError
from jaxagent.metrics import read_metrics
from jaxagent.preemption import EXIT_PREEMPTED
from jaxagent.run_log import RunLog
from jaxagent.runtime import Runtime
from tests.e2e.run_files import StopAfter, small_run

SHORT = ("warm_start=[]", "eval.splits=[]", "checkpoint.every=1", "stages.0.options.iterations=3")


def replaying(folder):
    """GVPO with a replay buffer that is drawn from heavily, keeping its rollouts."""
    return small_run(
        "world_replay", folder, *SHORT, "keep_rollouts=1", "stages.0.options.replay.fraction=0.5"
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept") / "run"
    assert run.run_training(replaying(folder)) == 0
    return folder


def tokens(store):
    """(iteration, trajectory, sampled tokens) of everything stored."""
    return [
        (iteration, trajectory.traj_id, step.ids_T.tolist())
        for iteration in store.iterations
        for group in store.groups(iteration)
        for trajectory in group.trajectories
        for step in trajectory.steps
    ]


def test_replay_and_the_store_survive_a_crash(tmp_path, monkeypatch, kept):
    """Killed before the second iteration was saved: it is run again, stored once, with the same draws."""
    folder = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(run, "Preemption", lambda: StopAfter(folder, 2))
        assert run.run_training(replaying(folder)) == EXIT_PREEMPTED
    assert RolloutStore(folder).iterations == [0, 1]
    shutil.rmtree(max((folder / "checkpoints").glob("0*")))
    assert run.run_training(replaying(folder)) == 0
    assert tokens(RolloutStore(folder)) == tokens(RolloutStore(kept))
    one, other = (load_file(f / "export" / "model.safetensors") for f in (kept, folder))
    for name, value in one.items():
        np.testing.assert_array_equal(other[name], value, err_msg=name)


def test_replayed_trajectories_are_part_of_the_update(kept):
    drawn = [record["replay/drawn"] for record in read_metrics(kept / "metrics.jsonl")]
    assert drawn == [0, 8, 8]
    last = read_metrics(kept / "metrics.jsonl")[-1]
    assert 1 <= last["replay/lag_mean"] <= last["replay/lag_max"] <= 2
    assert last["replay/beta"] == 1


def test_the_store_holds_what_the_run_counted(kept):
    store = RolloutStore(kept)
    for record in read_metrics(kept / "metrics.jsonl"):
        groups = store.groups(record["step"])
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        assert len(trajectories) == record["rollout/kept"]
        assert np.mean([t.reward for t in trajectories]) == pytest.approx(record["reward/mean"])
        assert (
            sum(int(s.mask_T.sum()) for t in trajectories for s in t.segments)
            == record["rollout/sampled_tokens"]
        )
        assert {"behaviour", "old"} == set(trajectories[0].segments[0].logprobs)


@pytest.mark.parametrize(
    ("every", "rolls_out", "expected"), [(1, True, [0, 1, 2, 3]), (3, True, [0, 3]), (1, False, [])]
)
def test_every_nth_iteration_is_kept_of_stages_that_roll_out(every, rolls_out, expected):
    kept, log = [], object.__new__(RunLog)
    log._config = SimpleNamespace(keep_rollouts=every)
    log._kept = SimpleNamespace(write=lambda groups, iteration, stage: kept.append(iteration))
    keeper = SimpleNamespace(log=log, _rolls_out=rolls_out, state=SimpleNamespace(name="rl"))
    for keeper.state.iterations in range(4):
        Runtime.keep(keeper, [])
    assert kept == expected


def test_another_method_trains_offline_on_the_same_rollouts(tmp_path, kept):
    """LOOP from GVPO's rollouts: no episode is played, the trainer scores the old log-probs, parameters move."""
    folder = tmp_path / "run"
    offline = ("stages.0.recipe=loop", f"stages.0.options={{iterations: 2, tasks: 3, rollouts_from: {kept}}}")
    assert run.run_training(small_run("offline_gvpo", folder, *SHORT[:3], *offline)) == 0
    records = read_metrics(folder / "metrics.jsonl")
    assert [record["data/epoch"] for record in records] == [0.5, 1.0]
    for record in records:
        assert not any(name.startswith("rollout/") for name in record)
        assert np.isfinite(record["mismatch/abs_mean"])
    assert not (folder / FILE).exists()


def test_the_shipped_run_file_trains_offline_and_moves_the_parameters(tmp_path, kept):
    folder = tmp_path / "run"
    path = f"stages.0.options.rollouts_from={kept}"
    assert run.run_training(small_run("offline_gvpo", folder, *SHORT, path)) == 0
    assert sum(record["update/steps"] for record in read_metrics(folder / "metrics.jsonl")) >= 3
    export = load_file(folder / "export" / "model.safetensors")
    before = load_file(kept / "export" / "model.safetensors")
    assert any((export[name] != value).any() for name, value in before.items())


def test_another_tokenizer_is_refused_before_a_device_starts(tmp_path, kept):
    other = ("tokenizer.vocab_size=400", f"stages.0.options.rollouts_from={kept}")
    with pytest.raises(ConfigError, match="another tokenizer, model"):
        run.run_training(small_run("offline_gvpo", tmp_path / "run", *SHORT, *other))


def test_the_command_scores_the_store_again(tmp_path, kept, capsys):
    page = tmp_path / "page.html"
    words = ["credit", str(kept), "--methods", "grpo,gvpo,gvpo{b: 0.5},gigpo", "--iteration", "1"]
    assert main([*words, "--out", str(page)]) == 0
    said = capsys.readouterr().out
    assert "Iteration 1 (stage gvpo)" in said
    assert "page.html" in said
    assert "gvpo{b: 0.5}" in page.read_text()
    assert main(["credit", str(kept), "--iteration", "9"]) == 2
    assert "stored: 0-2" in capsys.readouterr().err
