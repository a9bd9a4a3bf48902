"""Guided rollouts: how many, in one group, stripped before anything is scored, and a source that resumes exactly."""

import json
from dataclasses import replace

import numpy as np
import pytest

from jaxagent.auxlm.background import Background
from jaxagent.auxlm.client import AuxError, AuxLimits, AuxLM, ScriptedBackend
from jaxagent.batch.boost import BOOST
from jaxagent.checks import own
from jaxagent.data.tasks import TaskSource
from jaxagent.errors import ConfigError
from jaxagent.skills.experience import EXPERIENCE, Experience, ExperiencePool, script_experience
from jaxagent.skills.guided import GuidedRules, GuidedSource, guided_rollouts, reopened
from jaxagent.skills.request import Requests
from jaxagent.skills.retrieve import jaccard
from jaxagent.stage import Source
from jaxagent.types import Group, Message, Prompt, Status
from tests.batch.test_internal import PLAIN_PROMPT, RENDERER, TAUGHT, episode
from tests.made_episodes import make_step, make_task, make_trajectory
from tests.skills.test_paired import TASKS, spec


def test_how_many_rollouts_are_guided():
    """Of 8: eta .6 is 4, with the code's rounding 5; 4.5 is rounded to the even 4."""
    floor = {eta: guided_rollouts(8, eta) for eta in (0, 0.25, 0.5, 0.6, 1)}
    assert floor == {0: 0, 0.25: 2, 0.5: 4, 0.6: 4, 1: 8}
    rounded = {eta: guided_rollouts(8, eta, "round") for eta in (0.5, 0.5625, 0.6)}
    assert rounded == {0.5: 4, 0.5625: 4, 0.6: 5}
    assert guided_rollouts(100, 0.29) == 29
    assert guided_rollouts(5, 0.5) == 2  # the odd one is plain
    with pytest.raises(ConfigError, match=r"eta=1\.5"):
        guided_rollouts(8, 1.5)


# --- the source -------------------------------------------------------------------------------------------------


def source(*, rollouts=8, script=script_experience, known=True, **rules):
    writer = Background(
        AuxLM(ScriptedBackend({EXPERIENCE.name: script}), AuxLimits(retries=0, backoff_s=0.0))
    )
    pool = ExperiencePool()
    if known:
        pool.add(Experience("do pay", "pay()"))
    made = GuidedRules(**{"likeness": jaccard, "floor": 0.2, **rules})
    return GuidedSource(TaskSource(TASKS, tasks=6, rollouts=rollouts), pool, writer, Requests(spec()), made)


def planned(made, verb):
    """(label, n, group) of the first task of this kind, and its openings."""
    plans = [plan for plan in made.next(0) if plan.task.task_id == f"{verb}-0"]
    opening = Prompt((Message("user", "do"),))
    shown = [(opening if plan.prompt is None else plan.prompt(opening)).messages[0].content for plan in plans]
    return [(plan.label, plan.n) for plan in plans], shown, {plan.group for plan in plans}


def test_half_of_a_tasks_rollouts_open_with_what_its_request_retrieves():
    parts, shown, groups = planned(source(), "pay")
    assert parts == [("guided", 4), ("plain", 4)]
    assert shown == ["<EXP>\nWhen do pay:\npay()\n</EXP>\n\ndo", "do"]
    assert len(groups) == 1
    assert "" not in groups  # both share a baseline
    assert planned(source(floor=0.5), "sing")[0] == [("", 8)]
    assert planned(source(known=False), "pay")[0] == [("", 8)]
    assert planned(source(eta=0.0), "pay")[0] == [("", 8)]
    assert planned(source(eta=1.0), "pay")[0] == [("guided", 8)]
    assert planned(source(rollouts=5), "pay")[0] == [("guided", 2), ("plain", 3)]
    assert isinstance(source(), Source)


def played(solved, label="plain", task="pay-0", status=Status.DONE):
    steps = [make_step(0, code="pay()" if solved else "sing()", status="ok" if solved else "timeout")]
    made = make_trajectory(float(solved), task=make_task(task), steps=steps, status=status)
    return replace(made, prompt=Prompt((Message("user", "do pay 0"),)), extra={"label": label})


def group(*trajectories):
    return Group(trajectories[0].task, trajectories)


def test_the_pool_grows_from_plain_survivors_success_and_failure_by_turns():
    asked = []

    def script(request):
        asked.append([episode["solved"] for episode in request.payload["episodes"]])
        return script_experience(request)

    made = source(script=script, known=False, examples=3)
    made.next(0)
    plain = [played(True), played(True), played(False), played(True)]
    other = [played(True, "guided"), played(True, status=Status.ENV_FAILED)]
    metrics = made.observe([group(*plain, *other)])
    made.close()
    assert asked == [[True, False, True]]
    assert [entry["content"] for entry in made.pool.state()] == ["pay()", "Avoid: sing()"]
    assert {entry["task"] for entry in made.pool.state()} == {"pay-0"}
    assert (metrics["navigate/added"], metrics["navigate/experiences"]) == (2.0, 2.0)
    assert metrics["navigate/guided_frac"] == 1 / 5
    assert (metrics["navigate/reward_guided"], metrics["navigate/reward_plain"]) == (1.0, 0.75)


def test_readings_wait_and_a_dead_writer_adds_nothing():
    made = source(known=False, every=2)
    for iteration in (0, 1):
        made.next(iteration)
        made.observe([group(played(True))])
        assert len(made.pool) == iteration
    made.close()

    def dead(request):
        raise AuxError("down", retry=False)

    made = source(script=dead, known=False)
    made.next(0)
    assert made.observe([group(played(True))])["navigate/added"] == 0.0
    made.close()


def test_resuming_gives_the_same_plans():
    first, again = source(known=False), source(known=False)
    first.next(0)
    first.observe([group(played(True))])
    again.restore(json.loads(json.dumps(first.state())))
    assert again.state() == first.state()
    found, same = (
        [(plan.task.task_id, plan.label, plan.n) for plan in made.next(1)] for made in (first, again)
    )
    assert found == same
    assert any(label == "guided" for _, label, _ in found)
    first.close()
    again.close()


# --- stripping --------------------------------------------------------------------------------------------------


def guided_episode(*messages):
    made = episode(*messages)
    return replace(made, extra={**made.extra, "label": "guided"})


def test_guided_rollouts_are_learnt_behind_the_plain_opening():
    """Every token from the first sampled one on stays, and nothing of the block; the other rollout is untouched."""
    taught, plain = guided_episode("go", "on"), replace(episode("go", opening=PLAIN_PROMPT), rollout=1)
    (made,) = reopened([group(taught, plain)], RENDERER)
    stripped, other = made.trajectories
    assert other is plain
    assert stripped.prompt == PLAIN_PROMPT
    assert stripped.extra[BOOST] is True
    (before,), (after,) = taught.segments, stripped.segments
    n, m = len(RENDERER.open(TAUGHT)), len(RENDERER.open(PLAIN_PROMPT))
    assert after.ids_T[:m].tolist() == RENDERER.open(PLAIN_PROMPT)
    np.testing.assert_array_equal(after.ids_T[m:], before.ids_T[n:])
    np.testing.assert_array_equal(after.mask_T[m:], before.mask_T[n:])
    assert not after.mask_T[:m].any()
    assert after.mask_T.sum() == before.mask_T.sum() == sum(len(step.ids_T) for step in taught.steps)


def test_a_share_may_keep_its_experiences_and_is_then_clipped_as_all():
    members = [replace(guided_episode("go"), rollout=i) for i in range(4)]
    (made,) = reopened([group(*members)], RENDERER, keep_share=0.5)
    assert [t.prompt == TAUGHT for t in made.trajectories] == [True, True, False, False]
    assert [BOOST in t.extra for t in made.trajectories] == [False, False, True, True]
    (whole,) = reopened([group(*members)], RENDERER, keep_share=1.0)
    assert whole.trajectories == tuple(members)


def test_sampler_and_trainer_need_not_agree_where_the_opening_is_another():
    (made,) = reopened([group(guided_episode("go"), episode("go"))], RENDERER)
    assert [t.prompt for t in own([made])[0].trajectories] == [TAUGHT]
