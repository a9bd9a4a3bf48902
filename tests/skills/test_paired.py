"""Paired plans: phases, halves, deltas, mining from plain successes only, and a source that resumes exactly."""

import json
from dataclasses import replace

import pytest

from jaxagent.auxlm.background import Background
from jaxagent.auxlm.client import AuxLimits, AuxLM, ScriptedBackend
from jaxagent.checkpoint_state import host_json
from jaxagent.data.tasks import TaskSource
from jaxagent.errors import DataError
from jaxagent.rewards.outcome import success
from jaxagent.rewards.returns import composed, each
from jaxagent.skills.halves import DELTA, PLAIN, SKILL, branch, delta_of, halves, skill_of, with_deltas
from jaxagent.skills.intrinsic import IntrinsicBank
from jaxagent.skills.mine import MINE, Miner, script_mine
from jaxagent.skills.paired import PairedRules, PairedSource, full_skill
from jaxagent.skills.request import Requests
from jaxagent.skills.retrieve import jaccard
from jaxagent.stage import Source
from jaxagent.types import Dropped, Group, Message, Prompt, Status, StepResult
from tests.envs.fake_envs import echo_spec
from tests.made_episodes import make_step, make_task, make_trajectory


def rollout(reward, label="", number=0, task="pay-1", status=Status.DONE):
    made = make_trajectory(
        reward, task=make_task(task), rollout=number, status=status, steps=[make_step(0, text="go")]
    )
    prompt = Prompt((Message("user", f"do {task}"),))
    return replace(made, prompt=prompt, extra={"label": label} if label else {})


def paired(with_skill, without, **kwargs):
    group = [rollout(r, SKILL, i, **kwargs) for i, r in enumerate(with_skill)]
    group += [rollout(r, PLAIN, i, **kwargs) for i, r in enumerate(without)]
    return Group(group[0].task, tuple(group))


def test_delta_by_hand():
    assert delta_of(paired([1, 1, 0, 1], [1, 0, 0, 0]), success) == 0.5
    assert delta_of(paired([1, 0, 0], [0, 1, 1, 1]), success) == pytest.approx(1 / 3 - 3 / 4)


def test_a_half_without_a_survivor_proves_nothing():
    group = paired([1, 1], [0, 0])
    plain_only = replace(
        group, trajectories=group.trajectories[2:], dropped=(Dropped("pay-1", 0, "died"),) * 2
    )
    assert delta_of(plain_only, success) is None
    assert delta_of(paired([1, 1], []), success) is None
    cancelled = [rollout(1, SKILL, 0, status=Status.CANCELLED), rollout(0, PLAIN, 0)]
    assert delta_of(Group(group.task, tuple(cancelled)), success) is None


def test_deltas_are_of_outcomes_whatever_the_return_is_scaled_by():
    returns = composed(success, {"bonus": lambda t: 0.25}, scale=10.0)
    (group,) = with_deltas(returns, success)([paired([1, 1, 0, 1], [1, 0, 0, 0])])
    assert [t.reward for t in group.trajectories[:3]] == [10.25, 10.25, 0.25]
    assert {t.extra[DELTA] for t in group.trajectories} == {0.5}
    (lone,) = with_deltas(returns, success)([paired([], [1, 0])])
    assert not any(DELTA in t.extra for t in lone.trajectories)
    graded = with_deltas(each(lambda t: 3.0), lambda t: 3.0 if branch(t) == SKILL else 0.5)
    assert graded([paired([1], [1])])[0].trajectories[0].extra[DELTA] == 0.5  # 3 counts as 1


def test_halves():
    first, second = halves([paired([1, 0], [0])])
    assert [branch(t) for t in first.trajectories] == [SKILL, SKILL]
    assert [branch(t) for t in second.trajectories] == [PLAIN]
    assert len(halves([paired([], [1, 0])])) == 1


# --- the source -----------------------------------------------------------------------------------------------

TASKS = [make_task(f"{verb}-{n}") for n in range(2) for verb in ("pay", "sing", "note")]


def spec():
    """An environment that may be opened here: the request is the task's id, its dash a blank."""

    class Opened:
        def reset(self, task):
            return StepResult("do " + task.task_id.replace("-", " "))

        def close(self):
            pass

    base = echo_spec()
    return replace(
        base,
        make=Opened,
        prompt=lambda task, first: Prompt((Message("user", first.observation),)),
        expert=lambda task, rng, sloppiness: None,
    )


def source(*, rollouts=8, tasks=2, **rules):
    script = AuxLM(ScriptedBackend({MINE.name: script_mine}), AuxLimits(backoff_s=0.0))
    values = {
        "warmup_min": 2,
        "warmup_max": 3,
        "n_req": 4,
        "mine_every": 2,
        "floor": 0.2,
        "slot": 0.0,
        "lambda_max": 0.1,
        "lambda_warm": 2,
    }
    made = PairedSource(
        TaskSource(TASKS, tasks=tasks, rollouts=rollouts, seed=0),
        IntrinsicBank(),
        Miner(Background(script)),
        Requests(spec()),
        PairedRules(outcome=success, likeness=jaccard, **values | rules),
        seed=0,
    )
    return made


@pytest.fixture
def make():
    made = []

    def build(**changes):
        made.append(source(**changes))
        return made[-1]

    yield build
    for each_source in made:
        each_source.close()


def played(plans, with_skill=1.0, without=1.0):
    """Groups as the rollout gives them: one a plan, or a group name."""
    by_name: dict[object, list] = {}
    for index, plan in enumerate(plans):
        reward = with_skill if plan.label.startswith(SKILL) else without
        opening = Prompt((Message("user", "do " + plan.task.task_id.replace("-", " ")),))
        for i in range(plan.n):
            made = rollout(reward, plan.label, i, task=plan.task.task_id)
            shown = opening if plan.prompt is None else plan.prompt(opening)
            made = replace(made, prompt=shown, extra={**made.extra, "plain_prompt": opening})
            by_name.setdefault((plan.task.task_id, plan.group or index), []).append(made)
    return [Group(ts[0].task, tuple(ts)) for ts in by_name.values()]


def go(made, iteration, **rewards):
    """One iteration: its plans and metrics."""
    plans = made.next(iteration)
    groups = with_deltas(each(success), success)(played(plans, **rewards))
    return plans, made.observe(groups)


def test_the_source_is_a_source(make):
    assert isinstance(make(), Source)


def test_the_warm_up_ends_with_enough_successes_or_at_its_longest(make):
    """16 plain successes an iteration: 4 are enough after the least warm-up of 2, 200 are not there by the longest."""
    quick, slow, never = make(), make(n_req=200), make(n_req=200, warmup_max=9)
    for iteration in range(3):
        for one in (quick, slow, never):
            go(one, iteration)
    assert (quick.since, slow.since, never.since) == (2, 3, None)


def test_the_least_warm_up_counts_iterations_not_successes(make):
    made = make(warmup_min=3, warmup_max=9, n_req=1)
    for iteration in range(3):
        plans, metrics = go(made, iteration)
        assert [(plan.n, plan.label, plan.group, plan.prompt) for plan in plans] == [(8, "", "", None)] * 2
        assert metrics["siri/warm_up"] == 1.0
        assert metrics["siri/lambda"] == 0.0
    assert made.since == 3


def test_failures_do_not_end_the_warm_up(make):
    made = make(warmup_max=9)
    for iteration in range(5):
        go(made, iteration, without=0.0)
    assert made.since is None
    assert not made._stored


def test_paired_plans_share_a_group_and_the_skill_opens_one_half(make):
    made = make(warmup_min=1, n_req=1, tasks=6)
    go(made, 0)
    plans, metrics = go(made, 1, with_skill=1.0, without=0.0)
    assert metrics["siri/mined"] > 0
    skilled = [plan for plan in plans if plan.label.startswith(SKILL)]
    assert skilled
    for plan in skilled:
        twin = plans[plans.index(plan) + 1]
        assert (twin.task, twin.label, twin.group, twin.n) == (plan.task, PLAIN, plan.group, 4)
        assert plan.n == 4
        assert plan.group
        assert twin.prompt is None
        opening = Prompt((Message("user", "do it"),))
        (message,) = plan.prompt(opening).messages
        assert message.content.endswith("\n\ndo it")
        assert message.content.startswith("A skill that may help here.\nWhen: do ")
    assert len({plan.group for plan in skilled}) == len(skilled)
    assert metrics["siri/delta"] == 1.0
    assert metrics["siri/gate_frac"] == 1.0
    assert {skill.evaluations for skill in made.bank.skills} >= {1}


def test_an_odd_rollout_is_plain_and_one_rollout_is_never_paired(make):
    for rollouts, expected in ((5, [(2, SKILL), (3, PLAIN)]), (1, [(1, "")])):
        made = make(rollouts=rollouts, warmup_min=1, n_req=1, tasks=6)
        go(made, 0)
        plans = [p for p in made.next(1) if p.task.task_id == "pay-0"]
        assert [(plan.n, plan.label.partition(":")[0]) for plan in plans] == expected


def test_without_a_skill_above_the_floor_all_rollouts_are_plain(make):
    made = make(warmup_min=1, n_req=1, floor=1.1)
    go(made, 0)
    plans, metrics = go(made, 1)
    assert [(plan.n, plan.label, plan.group) for plan in plans] == [(8, "", "")] * 2
    assert len(made.bank) > 0
    assert metrics["siri/paired_frac"] == 0.0


def test_skills_come_from_plain_episodes_only(make):
    """Skill episodes all solve their tasks, plain ones none: nothing new is stored or counted."""
    made = make(warmup_min=1, n_req=1, tasks=6)
    go(made, 0)
    stored, successes = list(made._stored), made._successes
    _, metrics = go(made, 1, with_skill=1.0, without=0.0)
    assert metrics["siri/paired_frac"] > 0
    unpaired = [r for r in made._stored if r not in stored]
    assert unpaired == []
    assert made._successes == successes


def test_the_newest_successes_are_stored(make):
    """Two tasks an iteration, 8 successes each: the last three are of the second task of the second iteration."""
    made = make(stored=3, warmup_max=9, n_req=10**6)
    go(made, 0)
    plans, _ = go(made, 1)
    assert [record["task"] for record in made._stored] == [plans[1].task.task_id] * 3


def test_mining_every_so_many_iterations_after_the_warm_up(make):
    made = make(warmup_min=2, n_req=1, mine_every=3, mine_calls=1, mine_batch=1)
    mined = [go(made, iteration)[1]["siri/mined"] for iteration in range(9)]
    assert made.since == 2
    assert [iteration for iteration, n in enumerate(mined) if n] in ([2], [2, 5], [2, 8], [2, 5, 8])
    assert len(made.bank) == sum(mined)


def test_rollouts_that_run_ahead_are_credited_to_the_skill_that_they_had(make):
    """Iterations 2 and 3 are asked for before 1 is observed, and an episode group of 1 comes late, with those of 2."""
    made = make(warmup_min=1, n_req=1, tasks=3, mine_every=1)
    go(made, 0)
    plans = {i: made.next(i) for i in (1, 2, 3)}
    made.since = 1
    graded = {i: with_deltas(each(success), success)(played(p, without=0.0)) for i, p in plans.items()}
    credited = []
    evaluate = made.bank.evaluate
    made.bank.evaluate = lambda skill, delta: credited.append(skill) or evaluate(skill, delta)
    assert made.strength == 0.0  # of iteration 1, not of the one that was asked for last
    late, *first = graded[1]
    for groups in (first, [late, *graded[2]], graded[3]):
        made.observe(groups)
    shown = [skill_of(group) for i in (1, 2, 3) for group in ([*first, late] if i == 1 else graded[i])]
    assert credited == [skill for skill in shown if skill is not None]
    assert len(set(credited)) > 1
    assert made.strength == pytest.approx(0.1)


def test_strength_by_hand():
    rules = PairedRules(outcome=success, likeness=jaccard, lambda_max=0.1, lambda_warm=50)
    values = {k: rules.strength(k, 50) for k in (40, 50, 60, 75, 100, 150)}
    assert values == pytest.approx({40: 0.0, 50: 0.0, 60: 0.02, 75: 0.05, 100: 0.1, 150: 0.1})
    assert rules.strength(60, None) == 0.0
    assert replace(rules, lambda_warm=0).strength(51, 50) == 0.1


def test_resuming_gives_the_same_plans_bank_and_phase(make):
    """Stopped after any iteration, in the warm-up and after it: state, plans and metrics go on as without a stop."""
    straight = make(warmup_min=2, n_req=1, tasks=3)
    resumed = make(warmup_min=2, n_req=1, tasks=3)
    for iteration in range(8):
        rewards = {"with_skill": 1.0 - iteration % 2, "without": 1.0}
        (plans, metrics), (again, same) = (go(each, iteration, **rewards) for each in (straight, resumed))
        shown = [(p.task, p.n, p.label, p.group, opened(p)) for p in plans]
        assert shown == [(p.task, p.n, p.label, p.group, opened(p)) for p in again]
        assert own(metrics) == own(same)
        state = json.loads(host_json(resumed.state()))
        assert state == json.loads(host_json(straight.state()))
        resumed = make(warmup_min=2, n_req=1, tasks=3)
        resumed.restore(state)
    assert straight.since == 2
    assert len(straight.bank) > 0


def own(metrics):
    """Without the counts of calls, which begin anew with a process."""
    return {name: value for name, value in metrics.items() if not name.startswith("auxlm")}


def opened(plan):
    prompt = Prompt((Message("user", "x"),))
    return prompt if plan.prompt is None else plan.prompt(prompt)


def test_a_damaged_state_is_refused(make):
    made = make()
    state = json.loads(json.dumps(made.state())) | {"bank": [{"skill_id": "s0"}]}
    with pytest.raises(DataError, match="damaged"):
        made.restore(state)


def test_an_evaluation_with_the_bank_and_a_long_skill_is_cut(make):
    made = make(max_chars=20)
    plain = Prompt((Message("user", "do pay 0"),))
    assert made.opening(TASKS[0], plain) == plain
    made.bank.add("do pay", "step " * 50, ["t"])
    (message,) = made.opening(TASKS[0], plain).messages
    assert message.content == full_skill(made.bank.skills[0])[:20] + "\n\ndo pay 0"


def test_requests_of_an_environment_that_cannot_be_opened_are_remembered():
    closed = Requests(replace(spec(), expert=None))
    task = make_task("pay-1")
    assert closed.of(task) == ""
    closed.learn(rollout(1.0, task="pay-1"))
    assert closed.of(task) == "do pay-1"
    again = Requests(replace(spec(), expert=None))
    again.restore(json.loads(json.dumps(closed.state())))
    assert again.of(task) == "do pay-1"
    assert Requests(spec()).of(task) == "do pay 1"
    assert Requests(spec()).state() == {}
