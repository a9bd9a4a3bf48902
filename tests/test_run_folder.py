"""The run folder: what is written when, what is refused, what a second start does. No device is needed for that."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from jaxagent import run
from jaxagent.chat.render import Renderer
from jaxagent.chat.tokenizer import load_tokenizer
from jaxagent.config import RunConfig
from jaxagent.errors import ConfigError, DataError
from jaxagent.folder_lock import locked
from jaxagent.prepare import prepare
from jaxagent.run_file import write_run
from tests.test_prepare import SFT, read

ROOT = Path(__file__).parents[1]
FILE = SFT | {"options": {"file": "missing.jsonl"}}


def test_a_run_that_cannot_begin_leaves_no_folder_behind(tmp_path):
    """Else the corrected run file would be refused as another configuration."""
    with pytest.raises(DataError, match=r"missing\.jsonl"):
        run.run_training(read(tmp_path, stages=[FILE]))
    assert not (tmp_path / "run").exists()


def test_a_folder_is_opened_once_and_completed_after_a_kill(tmp_path):
    config = read(tmp_path, stages=[SFT])
    folder = tmp_path / "run"
    prepared = prepare(config)
    run._open_folder(folder, prepared)
    run._check_folder(folder, config)
    assert prepare(config).tokenizer.encode("open red") == prepared.tokenizer.encode("open red")
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "tokenizer"]

    (folder / "tokenizer").rename(folder / run.PARTIAL)  # killed while the tokenizer was written
    run._open_folder(folder, prepared)
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "tokenizer"]
    (folder / "config.yaml").rename(folder / run.PARTIAL)  # killed before that
    (folder / "tokenizer" / "tokenizer.json").unlink()
    (folder / "tokenizer" / "tokenizer_config.json").unlink()
    (folder / "tokenizer").rmdir()
    run._check_folder(folder, config)
    run._open_folder(folder, prepared)
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "tokenizer"]


def test_a_moved_folder_is_the_same_run_and_another_configuration_is_not(tmp_path):
    config = read(tmp_path, stages=[SFT])
    (tmp_path / "run").mkdir()
    write_run(config, tmp_path / "run" / "config.yaml")
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    moved = config.model_copy(update={"run_dir": str(tmp_path / "elsewhere")})
    run._check_folder(tmp_path / "elsewhere", moved)
    with pytest.raises(ConfigError, match="different: seed"):
        run._check_folder(tmp_path / "elsewhere", moved.model_copy(update={"seed": 5}))


def test_two_processes_never_share_a_folder(tmp_path):
    with locked(tmp_path / "run"), pytest.raises(ConfigError, match="in use by another process"):
        run.run_training(read(tmp_path, stages=[SFT]))
    assert not (tmp_path / "run").exists()  # nothing else was in it
    with locked(tmp_path / "run"):
        (tmp_path / "run" / "config.yaml").write_text("")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.yaml"]


def test_a_lock_ends_with_its_process(tmp_path):
    code = (
        "import os, sys, pathlib\nfrom jaxagent.folder_lock import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], cwd=ROOT).returncode == 9
    assert (tmp_path / "run" / ".lock").exists()
    with locked(tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    config = read(tmp_path, stages=[SFT]).model_copy(update={"run_dir": str(tmp_path / "file" / "run")})
    with pytest.raises(ConfigError, match="cannot be written to"):
        run.run_training(config)


def test_a_foreign_folder_is_left_alone(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match="no run folder"):
        run.run_training(read(tmp_path, stages=[SFT]))


def test_a_run_that_has_ended_shows_its_table_again(tmp_path, capsys):
    config = read(tmp_path, stages=[SFT])
    folder = tmp_path / "run"
    folder.mkdir()
    write_run(config, folder / "config.yaml")
    line = {"step": 0, "time": 0.0, "stage": "0-sft", "ce/nll": 1.0}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    metrics = {"tgc": 40.0, "sgc": 20.0, "tasks": 5.0}
    evaluation = {"when": "0-sft", "split": "test", "mode": "greedy", "metrics": metrics}
    result = json.dumps({"evaluations": [evaluation], "minutes": 1.5, "seed": 0})
    (folder / "result.json").write_text(result)
    assert run.run_training(config) == 0
    shown = capsys.readouterr().out
    assert "this run has ended" in shown
    assert "40.0 / 20.0" in shown
    assert (folder / "result.json").read_text() == result
    assert yaml.safe_load((folder / "config.yaml").read_text()) == RunConfig.model_dump(config, mode="json")


def test_an_export_takes_the_tokenizer_from_where_it_was_loaded(tmp_path, monkeypatch):
    """A name on the hub is no folder: the downloaded files are copied, and the adapter names its base as peft does."""
    prepared = prepare(read(tmp_path, stages=[SFT]))
    prepared.tokenizer.save(tmp_path / "snapshot")
    loaded = Renderer(load_tokenizer(tmp_path / "snapshot"), "plain")
    source = prepared.config.model.model_copy(update={"source": "hf://owner/name"})
    hub = replace(prepared, renderer=loaded, config=prepared.config.model_copy(update={"model": source}))
    given = {}
    monkeypatch.setattr("jaxagent.export.export_model", lambda *_, **named: given.update(named))
    monkeypatch.setattr("jaxagent.export.export_adapter", lambda *_, **named: given.update(named))
    run._export(None, None, hub, tmp_path / "out", form="adapter")
    assert given == {"base": "owner/name", "tokenizer": str(tmp_path / "snapshot")}
    run._export(None, None, prepared, tmp_path / "out", form="merged")
    assert given["tokenizer"] == tmp_path / "run" / "tokenizer"
