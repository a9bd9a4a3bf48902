"""What is kept of an episode, and that an evaluation which was stopped goes on from it."""

import asyncio
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from jaxagent.errors import DataError, EnvFailure
from jaxagent.eval.behaviour import behaviour_metrics, cost_metrics
from jaxagent.eval.episodes import episode_of, episode_record
from jaxagent.eval.ledger import FAILURES, Ledger, check_tasks, read_episodes
from jaxagent.eval.usage import Usage, usage
from jaxagent.plan import Plan
from jaxagent.types import Action, Message, Prompt, Status, Task, ToolCall
from tests.made_episodes import make_step, make_task, make_trajectory

TASKS = [make_task(f"t{i}") for i in range(3)]


def test_an_episode_survives_its_line():
    steps = [
        make_step(0, text="I assume `x` é \ud800", status="runtime_error", code="apis.a.b()"),
        make_step(1, tokens=5),
    ]
    before = make_trajectory(steps=steps, status=Status.LENGTH, tests=(1, 4), task=TASKS[1], rollout=3)
    after = episode_of(json.loads(json.dumps(episode_record(before))), TASKS[1])
    for metrics in (behaviour_metrics, cost_metrics):
        assert metrics([after]) == metrics([before])
    assert usage(after) == usage(before) == Usage((1, 3), (2, 5), (8,))
    for name in ("task", "rollout", "status", "evaluation", "prompt", "success"):
        assert getattr(after, name) == getattr(before, name)
    for one, other in zip(after.steps, before.steps, strict=True):
        for name in (
            "k",
            "observation_before",
            "text",
            "stop",
            "action",
            "exec_status",
            "observation_after",
            "anchor",
        ):
            assert getattr(one, name) == getattr(other, name)


def test_tool_calls_survive_in_prompts_and_actions():
    call = ToolCall("add", {"a": [1, {"b": None}]})
    opening = Prompt((Message("assistant", "", tool_calls=(call,)), Message("tool", "3")), ({"name": "add"},))
    made = make_trajectory(steps=[replace(make_step(0), action=Action("x", (call,), ""))])
    made = replace(made, prompt=opening)
    after = episode_of(json.loads(json.dumps(episode_record(made))), made.task)
    assert after.prompt == opening
    assert after.steps[0].action.tool_calls == (call,)


def test_the_digest_tells_token_sequences_apart():
    one, other = make_step(0), make_step(0)
    other.ids_T[-1] += 1
    digests = [episode_record(make_trajectory(steps=[step]))["digest"] for step in (one, one, other)]
    assert digests[0] == digests[1] != digests[2]


def test_usage_from_tokens_from_an_endpoint_and_from_nobody():
    whole = make_trajectory(steps=["ok", "ok"])
    unknown = replace(whole, segments=(), extra={"usage": None})
    counted = replace(whole, segments=(), extra={"usage": {"context": [10, 30], "sampled": [4, 6]}})
    assert usage(whole) == Usage((1, 3), (2, 2), (5,))
    assert usage(counted) == Usage((10, 30), (4, 6), (36,))
    assert usage(unknown) is None
    assert cost_metrics([whole, counted])["total_tokens"] == 20.5
    assert "total_tokens" not in cost_metrics([whole, unknown])


def test_an_episode_without_a_message_sampled_nothing():
    """A prompt that fills the context ends the episode before the first token."""
    made = replace(make_trajectory(steps=["ok"], status=Status.LENGTH), steps=(), segments=())
    after = episode_of(json.loads(json.dumps(episode_record(made))), made.task)
    assert usage(after) == usage(made) == Usage((), (), ())
    assert cost_metrics([after])["total_tokens"] == 0


class Runner:
    """Solves every task; `failing` names (task, rollout) that fail."""

    def __init__(self, failing=()):
        self.played, self.failing = [], set(failing)

    async def __call__(self, plan, rollout):
        task = plan.task
        self.played.append((task.task_id, rollout))
        if (task.task_id, rollout) in self.failing:
            raise EnvFailure("hang", "it did not answer")
        return make_trajectory(1.0, task=task, rollout=rollout)


def play(path, runner, n=2, **kwargs):
    """Every rollout of every task through a ledger; failures are None."""
    ledger = Ledger(path, **kwargs)

    async def one(through, task: Task, rollout: int):
        try:
            return await through(Plan(task, 1), rollout)
        except EnvFailure:
            return None

    async def every():
        through = ledger.through(runner)
        return [await one(through, task, rollout) for task in TASKS for rollout in range(n)]

    out = asyncio.run(every())
    ledger.close()
    return out, ledger


def test_only_what_is_missing_is_played(tmp_path):
    path, broken, whole = tmp_path / "deep" / "dev.jsonl", Runner({("t1", 1)}), Runner()
    first, _ = play(path, broken)
    assert [t is None for t in first] == [False, False, False, True, False, False]
    second, ledger = play(path, whole)
    assert whole.played == [("t1", 1)]
    assert [(t.task.task_id, t.rollout) for t in second] == [(f"t{i}", n) for i in range(3) for n in range(2)]
    assert len(ledger.records) == 6
    noted = [json.loads(line) for line in (path.parent / FAILURES).read_text().splitlines()]
    assert noted == [
        {"episodes": "dev", "task": "t1", "rollout": 1, "kind": "hang", "message": "it did not answer"}
    ]


@pytest.mark.parametrize("cut", [1, 40, 300])
def test_a_half_line_is_played_again(tmp_path, cut):
    path = tmp_path / "dev.jsonl"
    play(path, Runner())
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    again = Runner()
    play(path, again)
    assert again.played == [("t2", 1)]
    assert [json.loads(line)["task"] for line in path.read_text().splitlines()] == [
        "t0",
        "t0",
        "t1",
        "t1",
        "t2",
        "t2",
    ]


def test_seconds_of_all_processes_add_up(tmp_path):
    path, decode = tmp_path / "dev.jsonl", iter(np.arange(100.0))
    play(path, Runner(), n=1, seconds=lambda: {"decode": float(next(decode))})
    _, ledger = play(path, Runner(), n=2, seconds=lambda: {"decode": float(next(decode))})
    spent = ledger.spent()
    assert spent["decode"] == 6.0  # three episodes each, one second each
    assert 0 <= spent["wall"] < 60
    assert {record["session"] for record in ledger.records.values()} == {1, 2}


def test_damage_is_named(tmp_path):
    path = tmp_path / "dev.jsonl"
    play(path, Runner(), n=1)
    line = path.read_text().splitlines(keepends=True)[0]
    path.write_text(path.read_text() + line)
    with pytest.raises(DataError, match="line 4: rollout 0 of task 't0' is there twice"):
        read_episodes(path)
    path.write_text(line + "{]\n")
    with pytest.raises(DataError, match="line 2 is no episode"):
        read_episodes(path)
    path.write_text('{"task": "t0", "rollout": 0}\n')
    with pytest.raises(DataError, match="line 1 is no episode"):
        read_episodes(path)


def test_what_was_not_asked_for_is_refused(tmp_path):
    path = tmp_path / "dev.jsonl"
    _, ledger = play(path, Runner())
    check = partial(check_tasks, ledger.records, path=path)
    check(TASKS, n=2)
    with pytest.raises(DataError, match="rollout 1 of task 't0', which is not asked for"):
        check(TASKS, n=1)
    with pytest.raises(DataError, match="'t2', which is not asked for"):
        check(TASKS[:2], n=2)
