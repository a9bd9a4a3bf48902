"""When a run evaluates, on what, and what it still owes after a stop."""

import json

import pytest

from jaxagent.eval.runner import EvalResult
from jaxagent.evaluations import Due, Evaluations
from jaxagent.prepare import prepare
from tests.test_prepare import LOOP, SFT, read

STAGES = [SFT | {"evaluate": False}, SFT | {"name": "warm"}, LOOP | {"name": "rl"}]


@pytest.fixture
def evaluations(tmp_path):
    def make(**changes):
        chosen = {"splits": ["dev", "test"], **changes}
        room = {"rollout": {"max_steps": 2, "max_tokens": 8, "context": 256}, "pack": {"length": 256}}
        return Evaluations(prepare(read(tmp_path, stages=STAGES, eval=chosen, **room)))

    return make


def result(split="dev", mode="greedy", tgc=50.0):
    return EvalResult(split, mode, 1, {"tgc": tgc}, records=(), dropped={}, seconds=0.0)


def test_a_stage_is_measured_within_on_the_first_split_and_at_its_end_on_all(evaluations):
    made = evaluations(every=2)
    within = [made.due_after(2, number, ended=False) for number in (1, 2, 3, 4)]
    assert within == [None, Due("rl:2", ("dev",)), None, Due("rl:4", ("dev",))]
    assert made.due_after(2, 6, ended=True) == Due("rl", ("dev", "test"))
    assert made.due_after(0, 6, ended=True) is None  # evaluate: false
    assert evaluations(every=0).due_after(2, 2, ended=False) is None


def test_the_share_solved_at_a_moment_is_that_of_the_first_split_played_greedily(evaluations):
    made = evaluations(every=2)
    for found in (result(tgc=30.0), result(mode="sampled", tgc=10.0), result(split="test", tgc=90.0)):
        made.keep("rl:2", found)
    assert made.solved("rl:2") == 0.3
    assert made.solved("rl:4") is None


def test_what_a_stopped_run_owes_is_measured_before_it_goes_on(evaluations):
    made = evaluations()
    assert made.due_before(0, 0) == Due("start", ("dev", "test"))
    assert made.due_before(0, 3) is None
    assert made.due_before(1, 0) is None  # the stage before is not evaluated
    assert made.due_before(2, 0) == Due("warm", ("dev", "test"))
    assert made.due_before(3, 0) == Due("rl", ("dev", "test"))  # the run is over but for this
    made.keep("rl", result())
    assert made.due_before(3, 0) is None
    assert evaluations(at_start=False).due_before(0, 0) is None


def test_an_evaluation_within_a_stage_is_owed_after_a_stop_too(evaluations):
    """Asked to stop at the end of iteration 2, a run saves first and does not measure."""
    made = evaluations(every=2)
    assert made.due_within(2, 0) is None  # the stage begins
    assert made.due_within(2, 1) is None
    assert made.due_within(2, 2) == Due("rl:2", ("dev",))
    made.keep("rl:2", result())
    assert made.due_within(2, 2) is None


def test_greedy_and_at_temperature_one_whatever_training_samples_at(evaluations):
    assert [rule.temperature for rule in evaluations().modes()] == [0.0, 1.0]
    assert [rule.temperature for rule in evaluations(sampled=False).modes()] == [0.0]
    assert len(evaluations(limit=3).tasks("dev")) == 3
    assert len(evaluations().tasks("dev")) == 16


def test_training_rollouts_may_be_forced_to_a_tool_and_evaluations_never(tmp_path):
    room = {"max_steps": 2, "max_tokens": 8, "context": 256, "tool_epsilon": 0.5}
    prepared = prepare(read(tmp_path, stages=STAGES, rollout=room, pack={"length": 256}))
    assert prepared.sampling.tool_epsilon == 0.5
    assert [rule.tool_epsilon for rule in Evaluations(prepared).modes()] == [0.0, 0.0]


def test_before_is_the_first_full_evaluation_and_after_the_last(evaluations, tmp_path):
    made = evaluations()
    assert made.outcome() == {"before": {}, "after": {}, "evaluations": []}
    for tgc in (4.0, 5.0):
        made.keep("start", result(tgc=tgc))
    assert (made.outcome()["before"], made.outcome()["after"]) == ({}, {"dev/greedy": {"tgc": 5.0}})
    for when, tgc in (("start", 10.0), ("rl:2", 90.0), ("rl", 40.0)):
        made.keep(when, result(tgc=tgc))
    outcome = made.outcome()
    assert outcome["before"] == {"dev/greedy": {"tgc": 10.0}}
    assert outcome["after"] == {"dev/greedy": {"tgc": 40.0}}
    written = tmp_path / "run" / "evaluations" / "rl-2-dev-greedy.json"
    assert json.loads(written.read_text())["metrics"] == {"tgc": 90.0}
