"""A decoder whose weights are not the trainer's stops the run at its first rollout, before a step is taken."""

import json

import jax
import pytest

from jaxagent.cli import main
from jaxagent.decode.engine import Engine
from jaxagent.run_file import write_run
from tests.e2e.run_files import SMALL_MODEL
from tests.test_prepare import LOOP, read


@pytest.mark.parametrize("damage", [1.0, 1.02], ids=["whole", "damaged"])
def test_a_damaged_hand_off_stops_the_run(tmp_path, monkeypatch, capsys, damage):
    load = Engine.load

    def damaged(engine, params, version):
        load(engine, jax.tree.map(lambda leaf: leaf * damage, params), version)

    monkeypatch.setattr(Engine, "load", damaged)
    config = read(
        tmp_path,
        model={"source": str(SMALL_MODEL)},
        rollout={"max_steps": 2, "max_tokens": 8, "context": 256, "slots": 4, "query_buckets": [64]},
        pack={"rows": 8, "length": 256},
        stages=[LOOP | {"options": {"iterations": 1, "tasks": 1, "group_size": 2}}],
        export=False,
    )
    write_run(config, tmp_path / "run.yaml")
    code = main(["train", str(tmp_path / "run.yaml")])
    metrics = tmp_path / "run" / "metrics.jsonl"
    if damage == 1:
        assert code == 0
        assert json.loads(metrics.read_text().splitlines()[0])["mismatch/abs_max"] < 1e-4
    else:
        assert code == 3
        assert "decoder and trainer disagree before any update" in capsys.readouterr().err
        assert metrics.read_text() == ""
