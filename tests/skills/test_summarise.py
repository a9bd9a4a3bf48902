"""Summaries: schema, script, the pool's boundary rule, and the source that remembers."""

import asyncio
import json
import time
from dataclasses import replace

import numpy as np
import pytest

from jaxagent.auxlm.client import AuxLimits, AuxLM, ScriptedBackend
from jaxagent.plan import Plan
from jaxagent.rollout.episode import PLAIN
from jaxagent.skills.bank import SkillBank
from jaxagent.skills.source import SkillRules, SkillSource, best_and_worst
from jaxagent.skills.summarise import (
    SHOWN_CHARS,
    SHOWN_STEPS,
    SUMMARISE,
    SummariserPool,
    script_summary,
    summary_payload,
)
from jaxagent.stage import Source
from jaxagent.types import Action, ExecStatus, Group, Message, Prompt, Status, Step, Stop, Task
from tests.made_episodes import make_task, make_trajectory

OK, ERROR = ExecStatus.OK, ExecStatus.RUNTIME_ERROR


def step(k, code, status=OK, observation=""):
    ids, logprobs = np.arange(3, dtype=np.int32), np.zeros(3, np.float32)
    return Step(k, "", code, ids, logprobs, 0, Stop.STOP, Action(code), status, observation)


def episode(task="t1", rollout=0, *, steps=("x",), reward=1.0, status=Status.DONE):
    record = make_task(task)
    steps = [step(k, s) if isinstance(s, str) else s for k, s in enumerate(steps)]
    made = make_trajectory(reward, steps=steps, task=record, rollout=rollout, status=status)
    return replace(made, prompt=Prompt((Message("system", "Rules"), Message("user", f"Do {task}"))))


def group(*trajectories):
    return Group(trajectories[0].task, tuple(trajectories))


SOLVED = episode(
    steps=[step(0, "pay()", ERROR, "Traceback\nApiError: 401 login required"), "login()", "pay()"]
)
FAILED = episode(rollout=1, reward=0.25, steps=["login()", "finish()"])


def scripted(**limits):
    return AuxLM(ScriptedBackend({SUMMARISE.name: script_summary}), AuxLimits(backoff_s=0.0, **limits))


def ask(lm, trajectory):
    return asyncio.run(lm.complete(SUMMARISE, summary_payload(trajectory)))


def test_script_writes_the_steps_that_ran():
    record = ask(scripted(), SOLVED)
    assert record.golden_workflow == ["login()", "pay()"]
    assert record.success_analysis == "Solved in 3 steps."
    assert record.mistake_analysis == "pay()\nApiError: 401 login required"
    failure = ask(scripted(), FAILED)
    assert failure.mistake_analysis == "Every step ran, but the task was not solved (done, return 0.25)."
    assert failure.golden_workflow == []


def test_payload_is_json_and_cut_with_marks():
    long = episode(steps=[step(k, "x" * 5000, OK, "y" * 5000) for k in range(SHOWN_STEPS + 3)])
    payload = summary_payload(long)
    assert payload["steps_left_out"] == 3
    assert len(payload["steps"]) == SHOWN_STEPS
    assert payload["steps"][0]["observation"] == "y" * SHOWN_CHARS + "… [4000 characters left out]"
    assert payload["task"] == {"id": "t1", "request": "Do t1"}
    assert json.loads(json.dumps(payload)) == payload


@pytest.mark.parametrize(
    ("trajectory", "answer"),
    [
        (SOLVED, {"success_analysis": None, "mistake_analysis": "m", "golden_workflow": "w"}),
        (SOLVED, {"success_analysis": "  ", "mistake_analysis": "m", "golden_workflow": "w"}),
        (FAILED, {"success_analysis": "s", "mistake_analysis": None, "golden_workflow": "w"}),
        (SOLVED, {"success_analysis": "s", "mistake_analysis": None}),
        (SOLVED, {"success_analysis": "s", "mistake_analysis": None, "golden_workflow": [1]}),
        (
            SOLVED,
            {"success_analysis": "s", "mistake_analysis": None, "golden_workflow": "w", "steps": ["all"]},
        ),
    ],
)
def test_answers_that_do_not_fit_are_dropped(trajectory, answer):
    lm = AuxLM(ScriptedBackend({SUMMARISE.name: lambda request: json.dumps(answer)}), AuxLimits(retries=0))
    assert ask(lm, trajectory) is None


def test_workflow_as_text_becomes_lines():
    answer = {"success_analysis": "s", "mistake_analysis": None, "golden_workflow": "login()\n\npay()"}
    lm = AuxLM(ScriptedBackend({SUMMARISE.name: lambda request: json.dumps(answer)}))
    assert ask(lm, SOLVED).skill(success=True).golden_workflow == ("login()", "pay()")


@pytest.fixture
def pool():
    pool = SummariserPool(scripted())
    yield pool
    pool.close()


def test_pool_gives_summaries_in_the_order_of_submission(pool):
    for key, trajectory in (("a", SOLVED), ("b", FAILED), ("a", FAILED)):
        pool.submit(key, summary_payload(trajectory))
    assert len(pool.state()) == 3
    summaries = pool.collect()
    assert [summary.key for summary in summaries] == ["a", "b", "a"]
    assert [summary.skill.success for summary in summaries] == [True, False, False]
    assert pool.collect() == []
    assert pool.metrics()["skills/pending"] == 0.0
    assert pool.metrics()["skills/summary_failures"] == 0.0


def test_pool_counts_failures():
    pool = SummariserPool(
        AuxLM(ScriptedBackend({SUMMARISE.name: lambda request: "no"}), AuxLimits(backoff_s=0.0))
    )
    pool.submit("a", summary_payload(SOLVED))
    (summary,) = pool.collect()
    assert summary.skill is None
    assert pool.metrics()["skills/summary_failures"] == 1.0
    pool.close()


def test_pool_raises_what_is_no_failure_of_the_model():
    pool = SummariserPool(AuxLM(ScriptedBackend({SUMMARISE.name: lambda request: 1 / 0})))
    pool.submit("a", summary_payload(SOLVED))
    with pytest.raises(ZeroDivisionError):
        pool.collect()
    pool.close()


class Slow:
    name = "slow"

    async def __call__(self, request):
        await asyncio.sleep(0.3)
        return script_summary(request)

    def close(self):
        self.closed = True


def test_late_summaries_become_visible_later():
    pool = SummariserPool(AuxLM(Slow()), patience_s=0.0)
    start = time.monotonic()
    pool.submit("a", summary_payload(SOLVED))
    assert pool.collect() == []
    assert time.monotonic() - start < 0.25  # training did not wait
    time.sleep(0.6)
    assert [summary.key for summary in pool.collect()] == ["a"]
    assert pool.latency_s >= 0.3
    pool.close()


def test_pending_summaries_survive_a_restart(pool):
    slow = SummariserPool(AuxLM(Slow()), patience_s=0.0)
    slow.submit("a", summary_payload(SOLVED))
    state = json.loads(json.dumps(slow.state()))
    slow.close()
    pool.restore(state)
    (summary,) = pool.collect()
    assert (summary.key, summary.skill.golden_workflow) == ("a", ("login()", "pay()"))


class OneTask:
    """The inner source: one plan of one task, and a counter as state."""

    def __init__(self):
        self.seen = 0

    def next(self, iteration):
        return [Plan(Task("t1", "world", "train"), 2)]

    def observe(self, groups):
        self.seen += len(groups)
        return {"inner": 1.0}

    def state(self):
        return {"seen": self.seen}

    def restore(self, state):
        self.seen = state["seen"]

    def close(self):
        self.closed = True


def source(pool, **rules):
    return SkillSource(OneTask(), SkillBank(), pool, SkillRules(**rules))


def test_closing_a_source_ends_everything_it_holds():
    slow = Slow()
    skills = source(SummariserPool(AuxLM(slow), patience_s=0.0))
    skills.pool.submit("a", summary_payload(SOLVED))
    thread = skills.pool._background._thread
    skills.close()
    assert skills.inner.closed
    assert slow.closed
    assert not thread.is_alive()


def test_skills_teach_from_the_next_iteration_on(pool):
    skills = source(pool)
    assert isinstance(skills, Source)
    (plan,) = skills.next(0)
    assert plan.prompt is None  # the student never sees a skill
    assert skills.teacher(SOLVED) is None
    metrics = skills.observe([group(SOLVED, FAILED)])
    assert metrics["inner"] == 1.0
    assert metrics["skills/taught_frac"] == 0.0
    assert skills.teacher(SOLVED) is None  # not before the boundary
    skills.next(1)
    taught = skills.teacher(SOLVED)
    assert "login()\npay()" in taught.messages[0].content
    assert taught == skills.teacher(FAILED)  # one skill for the whole group
    metrics = skills.observe([group(SOLVED, FAILED)])
    assert (metrics["skills/taught_frac"], metrics["skills/explore_frac"], metrics["skills/size"]) == (
        1.0,
        1.0,
        2.0,
    )
    first, second = skills.bank.skills("t1")
    assert (first.retrievals, first.mean_return) == (1, 0.625)
    assert second.retrievals == 0
    skills.next(2)
    # The untried one, first in first out.
    assert "Every step ran" in skills.teacher(SOLVED).messages[0].content


def test_skills_in_rollouts_are_picked_before_they_start(pool):
    skills = source(pool, in_rollouts=True, weights="reference", text=lambda skill: "LESSON")
    (plan,) = skills.next(0)
    assert (plan.prompt, plan.label, plan.weights) == (None, "", "current")  # no skill yet
    skills.observe([group(SOLVED, FAILED)])
    (plan,) = skills.next(1)
    assert (plan.label, plan.weights) == ("skill:s0", "reference")
    assert plan.prompt(SOLVED.prompt).messages[0].content == "Rules\n\nLESSON"
    extra = {PLAIN: SOLVED.prompt, "label": plan.label}
    shown = [replace(t, prompt=plan.prompt(t.prompt), extra=extra) for t in (SOLVED, FAILED)]
    skills.next(2)  # rollouts may run ahead: by now the other skill is picked
    skills.bank.credit("t1", "s0", 0.0)
    skills.next(3)
    skills.observe([group(*shown)])
    assert [skill.retrievals for skill in skills.bank.skills("t1")] == [2, 0]
    assert "LESSON" not in json.dumps(skills.pool.state())  # a lesson is not what the task asked


def test_order_of_teaching_and_observing_does_not_matter(pool):
    skills = source(pool)
    skills.next(0)
    skills.observe([group(SOLVED, FAILED)])
    skills.next(1)
    skills.observe([group(SOLVED, FAILED)])
    assert "login()\npay()" in skills.teacher(SOLVED).messages[0].content
    assert skills.bank.skills("t1")[0].retrievals == 1


def test_source_state_restores_in_the_middle_of_an_iteration(pool):
    skills = source(pool)
    for iteration in range(2):
        skills.next(iteration)
        skills.teacher(SOLVED)
        skills.observe([group(SOLVED, FAILED)])
    saved = json.loads(json.dumps(skills.state()))
    again = source(SummariserPool(scripted()))
    again.restore(saved)
    assert again.state() == skills.state()
    assert again.teacher(SOLVED) == skills.teacher(SOLVED)
    for each in (skills, again):
        each.next(2)
    assert again.bank.state() == skills.bank.state()
    assert again.inner.seen == 2
    again.pool.close()


def test_best_and_worst():
    middle = episode(rollout=2, reward=0.5)
    assert best_and_worst(group(FAILED, SOLVED, middle)) == [SOLVED, FAILED]
    same = [episode(rollout=r, reward=0.5) for r in range(2)]
    assert best_and_worst(group(*same)) == [same[0]]


def test_long_lessons_are_cut(pool):
    skills = source(pool, text=lambda skill: "x" * 500, max_chars=20)
    skills.next(0)
    skills.observe([group(SOLVED)])
    skills.next(1)
    assert skills.teacher(SOLVED).messages[0].content == "Rules\n\n" + "x" * 20


def test_scope_shares_a_buffer(pool):
    skills = source(pool, scope=lambda task: task.env)
    skills.next(0)
    skills.observe([group(SOLVED)])
    skills.next(1)
    other = episode("t9", reward=0.0, status=Status.STEP_LIMIT)
    assert "login()" in skills.teacher(other).messages[0].content


def test_an_evaluation_opens_with_the_best_skill_that_was_tried(pool):
    skills = source(pool)
    skills.next(0)
    skills.observe([group(SOLVED, FAILED)])
    skills.next(1)
    opening = Prompt((Message("user", "Do it"),))
    assert skills.opening(SOLVED.task, opening) == opening  # there are two, and none was tried
    skills.teacher(SOLVED)
    skills.observe([group(SOLVED, FAILED)])
    assert "login()\npay()" in skills.opening(SOLVED.task, opening).messages[0].content
    skills.next(2)
    skills.teacher(SOLVED)
    skills.observe([group(FAILED, FAILED)])  # the other one is worth less
    assert "login()\npay()" in skills.opening(SOLVED.task, opening).messages[0].content
    assert skills.opening(make_task("t9"), opening) == opening
