"""The command: what a run file and overrides on the command line mean, and which code a fault gives."""

import errno
import re

import pytest

from jaxagent import provenance
from jaxagent.auxlm.client import AuxError
from jaxagent.cli import main
from jaxagent.errors import EnvFailure, RolloutError

SMALL = [f"warm_start.{index}.options.demonstrations=2" for index in (0, 1)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "env.name=wrld"], "did you mean 'world'?"),  # overrides alone are the quickstart's
        (["check", "seed=-1"], "greater than or equal to 0"),
        (["check", "missing.yaml"], "no such run file"),
        (
            ["check", *SMALL, "stages.0.options.iterations=5"],
            "stage gvpo: schedule 'linear' has 5 optimiser steps",
        ),
        (["train", "stages.0.recipe=lop"], "did you mean 'loop'?"),
        (["report", "nowhere"], "holds no metrics.jsonl"),
        (["export", "nowhere", "out"], "is no run folder"),
    ],
)
def test_bad_input_is_one_message_and_code_2(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)  # a folder in which nobody has run anything
    assert main(words) == 2
    error = capsys.readouterr().err
    assert re.match(r"(opening environment \w+ and building the stages …\n)?error: ", error)
    assert message in error


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (RolloutError("not one of 8 episodes survived"), 4, "stopped: not one of 8 episodes survived"),
        (EnvFailure("died", "a worker died"), 4, "stopped: a worker died"),
        (AuxError("the endpoint is silent"), 4, "stopped: the endpoint is silent"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "error: No space left on device; free space"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/runs/a"),
            2,
            "error: /runs/a: Permission denied",
        ),
    ],
)
def test_what_stops_a_run_is_one_message(capsys, monkeypatch, error, code, message):
    def stops(*_, **__):
        raise error

    monkeypatch.setattr("jaxagent.run.run_training", stops)
    assert main(["train"]) == code
    said = capsys.readouterr().err
    assert said.startswith(message)
    assert "at the same command" in said


def test_faults_of_ours_keep_their_traceback(monkeypatch):
    """An OSError that no disk or user makes."""

    def stops(*_, **__):
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr("jaxagent.run.run_training", stops)
    with pytest.raises(OSError, match="Bad file"):
        main(["train"])


def test_an_interrupt_is_one_line_and_the_code_of_shells(capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxagent.run_file.read_run", interrupted)
    assert main(["train"]) == 130
    assert capsys.readouterr().err.startswith("interrupted; a run goes on")


def test_check_reads_everything_and_writes_nothing(capsys, tmp_path):
    assert main(["check", f"run_dir={tmp_path / 'run'}", *SMALL]) == 0
    said = capsys.readouterr().out
    assert "quickstart.yaml: fits." in said
    assert "stages: pretrain, warm, gvpo" in said
    assert not (tmp_path / "run").exists()


def test_a_package_inside_another_repository_does_not_take_its_commit(tmp_path, monkeypatch):
    provenance._git("init", "-q", str(tmp_path))
    (tmp_path / "provenance.py").write_text("")
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "provenance.py"))
    assert provenance.commit() == "unknown"
