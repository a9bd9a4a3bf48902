"""A run that is asked to stop where an evaluation is due saves first, and measures when it goes on."""

from jaxagent.metrics import read_metrics
from jaxagent.preemption import EXIT_PREEMPTED
from jaxagent.run import run_training
from jaxagent.run_file import read_run
from tests.e2e.run_files import RUNS, StopAfter, small_overrides

WITHIN = (
    "warm_start=[]",
    "stages.0.options.demonstrations=24",
    "stages.0.options.iterations=3",
    "checkpoint.every=0",
    "eval={splits: [dev], limit: 2, sampled: false, every: 1, at_start: false}",
)


def run_of(folder):
    kept = [change for change in small_overrides("world_sft", folder) if not change.startswith("warm_start")]
    return read_run(RUNS / "world_sft.yaml", [*kept, *WITHIN])


def evaluations(folder):
    """(moment, success) of every evaluation in the record, in its order."""
    return [
        (r["when"], r["eval/dev/greedy/tgc"]) for r in read_metrics(folder / "metrics.jsonl") if "when" in r
    ]


def test_a_stopped_run_measures_what_an_unbroken_one_does(tmp_path, monkeypatch):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert run_training(run_of(whole)) == 0
    with monkeypatch.context() as patch:
        patch.setattr("jaxagent.run.Preemption", lambda: StopAfter(stopped, 1))
        assert run_training(run_of(stopped)) == EXIT_PREEMPTED
    assert evaluations(stopped) == []
    assert run_training(run_of(stopped)) == 0
    assert [when for when, _ in evaluations(whole)][:2] == ["imitate:1", "imitate:2"]
    assert evaluations(stopped) == evaluations(whole)
