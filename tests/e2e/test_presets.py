"""Every run file of the embedded world trains two iterations a stage, from random weights and without a warm start.

Those of test_recipes.py train there, after their warm start.
"""

import json

import pytest

from jaxagent.metrics import read_metrics
from jaxagent.recipes.table import find_recipe
from jaxagent.run import run_training
from jaxagent.run_file import read_run
from tests.e2e.run_files import RUNS, SMALL
from tests.e2e.test_recipes import RECIPES

ELSEWHERE = {f"world_{recipe}" for recipe in RECIPES}
ALL = sorted({path.stem for path in RUNS.glob("world_*.yaml")} - ELSEWHERE)
SIZES = {"iterations": 2, "warmup_steps": 0, "tasks": 2, "group_size": 4, "batch": 8, "demonstrations": 24}
BARE = ("warm_start=[]", "eval.splits=[]", "export=false", "checkpoint.every=0")


def shrunk(name):
    """Overrides that make every stage of the run file small, whatever its recipe's options are."""
    overrides = [*(item for item in SMALL if not item.startswith(("warm_start", "eval"))), *BARE]
    for index, stage in enumerate(read_run(RUNS / f"{name}.yaml", []).stages):
        known = find_recipe(stage.recipe).options.model_fields
        overrides += [f"stages.{index}.options.{key}={value}" for key, value in SIZES.items() if key in known]
        overrides += [f"stages.{index}.pack=null"]
    return overrides


@pytest.mark.parametrize("name", ALL)
def test_two_iterations(tmp_path, name):
    run = read_run(RUNS / f"{name}.yaml", [*shrunk(name), f"run_dir={tmp_path / 'run'}"])
    assert run_training(run) == 0
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert len(records) == 2 * len(run.stages)
    for record in records:
        if "rollout/submitted" in record:
            assert record["rollout/submitted"] == record["rollout/kept"] + record["rollout/dropped"] >= 8
    assert json.loads((tmp_path / "run" / "result.json").read_text())["iterations"] == len(records)
