"""Checkpoints, their export and the run itself measure the same; two greedy evaluations agree to the last token."""

import json

import pytest

from jaxagent.cli import main
from jaxagent.run_file import write_run
from tests.e2e.run_files import SMALL_MODEL
from tests.test_prepare import LOOP, read

SPLIT = ["--split", "dev", "--limit", "4"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of one iteration, evaluated at its end."""
    folder = tmp_path_factory.mktemp("measured")
    config = read(
        folder,
        model={"source": str(SMALL_MODEL)},
        rollout={"max_steps": 2, "max_tokens": 8, "context": 256, "slots": 4, "query_buckets": [64]},
        pack={"rows": 8, "length": 256},
        stages=[LOOP | {"options": {"iterations": 1, "tasks": 1, "group_size": 2}}],
        eval={"splits": ["dev"], "limit": 4, "at_start": False},
    )
    write_run(config, folder / "run.yaml")
    assert main(["train", str(folder / "run.yaml")]) == 0
    return folder


def measure(run, out, *words):
    code = main(["eval", str(run / "run.yaml"), *words, *SPLIT, "--out", str(run / out)])
    assert code == 0
    return json.loads((run / out / "result.json").read_text())


def digests(run, out, mode="greedy"):
    lines = (run / out / "episodes" / f"dev-{mode}.jsonl").read_text().splitlines()
    return {(r["task"], r["rollout"]): (r["digest"], r["usage"]) for r in map(json.loads, lines)}


def test_a_checkpoint_measures_as_its_run_did(run):
    policy = str(run / "run")
    found = measure(run, "own", "--policy", policy, "--greedy", "--n", "1")
    after = json.loads((run / "run" / "result.json").read_text())["after"]
    assert found["settings"]["policy"]["step"] >= 1
    for evaluation in found["evaluations"]:
        expected = after[f"dev/{evaluation['mode']}"]
        assert expected == {name: evaluation["metrics"][name] for name in expected}
        assert evaluation["metrics"]["action_tokens"] > 2
        assert evaluation["cost"]["chip_s"] > 0


def test_two_greedy_evaluations_agree_exactly_whatever_plays_them(run):
    policy = str(run / "run")
    first = measure(run, "first", "--policy", policy)
    other = measure(run, "other", "env.workers=1", "rollout.slots=3", "--policy", policy)
    assert first["evaluations"][0]["metrics"] == other["evaluations"][0]["metrics"]
    assert first["evaluations"][0]["records"] == other["evaluations"][0]["records"]
    assert first["opened"]["weights"] == other["opened"]["weights"]
    assert digests(run, "first") == digests(run, "other")
    assert main(["compare", str(run / "first"), str(run / "other")]) == 0


def test_the_export_is_the_same_policy(run, capsys):
    found = measure(run, "exported", "--policy", str(run / "run" / "export"))
    step = max(int(path.name.split(".")[0]) for path in (run / "run" / "checkpoints").iterdir())
    checkpoint = run / "run" / "checkpoints" / f"{step:08d}.0"
    pinned = measure(run, "pinned", "--policy", str(checkpoint))
    assert found["opened"]["weights"] == pinned["opened"]["weights"]
    assert digests(run, "exported") == digests(run, "pinned")
    words = ["--policy", str(checkpoint.with_name("99999999.0")), *SPLIT, "--out", str(run / "none")]
    assert main(["eval", str(run / "run.yaml"), *words]) == 2
    assert "no whole checkpoint of step 99999999" in capsys.readouterr().err


def test_other_weights_do_not_go_on_with_an_evaluation(run, capsys):
    words = ["--policy", str(run / "run")]
    measure(run, "changed", *words)
    out = run / "changed"
    lines = (out / "episodes" / "dev-greedy.jsonl").read_text().splitlines(keepends=True)
    (out / "episodes" / "dev-greedy.jsonl").write_text("".join(lines[:-1]))
    opened = json.loads((out / "opened.json").read_text())
    (out / "opened.json").write_text(json.dumps(opened | {"weights": opened["weights"] + 1}))
    assert main(["eval", str(run / "run.yaml"), *words, *SPLIT, "--out", str(out)]) == 2
    assert "are not those that" in capsys.readouterr().err
