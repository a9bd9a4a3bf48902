"""SAGE's skill-integrated return: the table, its switches, and what becomes of chains that broke off."""

import pytest

from jaxagent.credit.chain import chain_mean
from jaxagent.credit.group import group_mean, per_group
from jaxagent.rewards import outcome as outcomes
from jaxagent.rewards.outcome import success
from jaxagent.rewards.returns import PARTS, each
from jaxagent.rewards.skills import SKILLS, SkillPay, skill_integrated, skill_metrics
from jaxagent.types import Dropped, ExecStatus, Group
from tests.made_episodes import make_step, make_task, make_trajectory

Q1, Q2, Q3 = (make_task(name, scenario="s") for name in ("q1", "q2", "q3"))


def episode(task, solved, code, number=0):
    status = ExecStatus.OK if code else ExecStatus.INVALID
    return make_trajectory(
        task=task,
        rollout=number,
        success=bool(solved),
        steps=[make_step(0, code=code, status=status)],
        tests=(1, 4),
    )


def chains(*facts, codes=("def f(): pass", "f()")):
    """Groups of both positions; facts of each chain: (r1, r2, u)."""
    first = [episode(Q1, r1, codes[0], j) for j, (r1, _, _) in enumerate(facts)]
    second = [episode(Q2, r2, codes[1] if u else "x = 1", j) for j, (_, r2, u) in enumerate(facts)]
    return [Group(Q1, tuple(first)), Group(Q2, tuple(second), position=1)]


def paid(groups, pay=None, outcome=success):
    """(R1, R2) of each chain."""
    first, second = skill_integrated(outcome, pay)(groups)
    return [(a.reward, b.reward) for a, b in zip(first.trajectories, second.trajectories, strict=True)]


TABLE = {
    (0, 0, 0): (0, 0),
    (0, 0, 1): (0, 0),
    (0, 1, 0): (0, 1),
    (0, 1, 1): (0, 2),
    (1, 0, 0): (1, 0),
    (1, 0, 1): (1, 0),
    (1, 1, 0): (1, 1),
    (1, 1, 1): (2, 2),
}


def test_the_table():
    assert paid(chains(*TABLE)) == list(TABLE.values())


def test_without_the_condition_on_the_first_task_a_failed_maker_is_paid():
    pay = SkillPay(made_needs_success=False)
    assert paid(chains(*TABLE), pay) == [(1, 2) if case == (0, 1, 1) else R for case, R in TABLE.items()]


def test_an_episode_without_code_gets_minus_one_instead():
    """The second task may still be solved with code of its own library: here there is none."""
    groups = chains((0, 1, 0), codes=("", "f()"))
    assert paid(groups) == [(-1, 1)]
    silent = [Group(Q1, (episode(Q1, 1, "def f(): pass"),)), Group(Q2, (episode(Q2, 0, ""),), position=1)]
    assert paid(silent) == [(1, -1)]
    assert paid(silent, SkillPay(no_code=-0.5)) == [(1, -0.5)]
    nothing = Group(Q1, (make_trajectory(task=Q1, steps=[]),))
    (group,) = skill_integrated(success)([nothing])
    assert group.trajectories[0].reward == -1


def test_without_code_of_its_own_an_episode_loses_its_return_and_the_user_keeps_both():
    """q1 writes f, q2 emits nothing, q3 is solved with f: -1 in the middle, 2 at the end."""
    groups = [
        Group(Q1, (episode(Q1, 1, "def f(): pass"),)),
        Group(Q2, (episode(Q2, 1, ""),), position=1),
        Group(Q3, (episode(Q3, 1, "f()"),), position=2),
    ]
    assert [group.trajectories[0].reward for group in skill_integrated(success)(groups)] == [2, -1, 2]


def test_code_that_failed_is_code():
    steps = [make_step(0, code="1/0", status=ExecStatus.RUNTIME_ERROR)]
    (group,) = skill_integrated(success)([Group(Q1, (make_trajectory(task=Q1, steps=steps),))])
    assert group.trajectories[0].reward == 0


def test_advantages_of_the_example():
    """(1,1,1), (1,1,0), (0,1,1), (1,0,0): R = (2,2), (1,1), (0,2), (1,0)."""
    groups = skill_integrated(success)(chains((1, 1, 1), (1, 1, 0), (0, 1, 1), (1, 0, 0)))
    assert [t.reward for t in groups[0].trajectories] == [2, 1, 0, 1]
    assert [t.reward for t in groups[1].trajectories] == [2, 1, 2, 0]
    credited = per_group(group_mean)(groups)
    assert [c.advantage_K[0] for c in credited] == [1, 0, -1, 0, 0.75, -0.25, 0.75, -1.25]
    by_chain = {c.trajectory.rollout: c.advantage_K[0] for c in chain_mean(groups)}
    assert by_chain == {0: 4 - 2.25, 1: 2 - 2.25, 2: 2 - 2.25, 3: 1 - 2.25}


@pytest.mark.parametrize("outcome", [success, outcomes.test_fraction])
def test_without_a_use_it_is_outcome_grpo_of_every_position(outcome):
    groups = chains((1, 1, 0), (0, 1, 0), (1, 0, 0), (0, 0, 0))
    for paying in (skill_integrated(outcome), skill_integrated(outcome, SkillPay(bonus=0))):
        credited, plain = (per_group(group_mean)(give(groups)) for give in (paying, each(outcome)))
        assert [c.advantage_K.tolist() for c in credited] == [c.advantage_K.tolist() for c in plain]
    used = chains((1, 1, 1), (0, 1, 1))
    assert paid(used, SkillPay(bonus=0)) == [(1, 1), (0, 1)]


def test_a_library_is_that_of_its_own_rollout():
    """Rollout 0 defines f, rollout 1 does not: its call of f is none of a skill."""
    first = Group(Q1, (episode(Q1, 1, "def f(): pass", 0), episode(Q1, 1, "x = 1", 1)))
    second = Group(Q2, (episode(Q2, 1, "f()", 0), episode(Q2, 1, "f()", 1)), position=1)
    assert paid([first, second]) == [(2, 2), (1, 1)]


def test_pairs_follow_rollout_numbers_when_some_were_dropped():
    first = Group(
        Q1, (episode(Q1, 1, "def f(): pass", 0), episode(Q1, 1, "x = 1", 2)), (Dropped("q1", 1, "hang"),)
    )
    second = Group(Q2, (episode(Q2, 1, "f()", 0), episode(Q2, 1, "f()", 2)), position=1)
    assert paid([first, second]) == [(2, 2), (1, 1)]


def test_an_episode_whose_chain_broke_off_is_dropped_because_its_bonus_is_unknown():
    first, second = chains((1, 1, 1), (1, 1, 1), (0, 1, 1))
    second = Group(
        Q2, second.trajectories[:1] + second.trajectories[2:], (Dropped("q2", 1, "died"),), position=1
    )
    one, two = skill_integrated(success)([first, second])
    assert [t.rollout for t in one.trajectories] == [0, 2]
    assert [(d.rollout, d.reason) for d in one.dropped] == [(1, "chain_cut")]
    assert [t.rollout for t in two.trajectories] == [0, 2]
    assert skill_metrics([one, two])["chain/cut"] == 1
    whole, _ = skill_integrated(success, SkillPay(bonus=0))([first, second])
    assert [t.rollout for t in whole.trajectories] == [0, 1, 2]


def test_in_a_longer_chain_the_maker_of_what_helped_is_paid():
    """q3 uses g of q2; f of q1 helped nobody. q2 is paid for making, q3 for using."""
    groups = [
        Group(Q1, (episode(Q1, 1, "def f(): pass"),)),
        Group(Q2, (episode(Q2, 1, "def g(): pass"),), position=1),
        Group(Q3, (episode(Q3, 1, "g()"),), position=2),
    ]
    assert [group.trajectories[0].reward for group in skill_integrated(success)(groups)] == [1, 2, 2]


def test_parts_and_facts_are_kept_and_measured():
    groups = skill_integrated(success)(chains((1, 1, 1), (1, 0, 1), (0, 1, 0)))
    first, second = groups[0].trajectories[0], groups[1].trajectories[0]
    assert first.extra[PARTS] == {"outcome": 1.0, "skill_made": 1.0, "skill_used": 0.0}
    assert second.extra[SKILLS] == {"library": 1, "defined": 0, "used": ("f",)}
    metrics = skill_metrics(groups)
    assert metrics["chain/0/functions"] == 1 == metrics["chain/1/library"]
    assert metrics["chain/1/used_frac"] == pytest.approx(2 / 3)
    assert metrics["chain/1/used_and_solved_frac"] == pytest.approx(1 / 3)
    assert metrics["chain/1/reward"] == pytest.approx((2 + 0 + 1) / 3)
    assert (metrics["chain/0/steps"], metrics["chain/0/tokens"]) == (1, 2)
    assert metrics["chain/0/no_code_frac"] == 0
