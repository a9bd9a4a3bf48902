"""Rejection sampling: what is kept, how many of each task, and what the log says of it."""

import numpy as np
import pytest

from jaxagent.data.selection import (
    balanced,
    capped,
    selecting,
    selection,
    selection_metrics,
    skilled_chains,
    solved,
)
from jaxagent.types import Credited, ExecStatus, Group
from tests.made_episodes import make_step, make_task, make_trajectory

A, B, C = (make_task(name, scenario="s") for name in "abc")


def made(task, number, reward=1.0, code="x = 1", status=ExecStatus.OK):
    return make_trajectory(reward, task=task, rollout=number, steps=[make_step(0, code=code, status=status)])


EPISODES = [made(A, 0), made(A, 1, 0.9), made(A, 2), made(A, 3), made(B, 0), made(C, 0, 0.0)]


def ids(episodes):
    return [episode.traj_id for episode in episodes]


def test_the_raw_verdict_selects_not_the_return():
    assert ids(solved(EPISODES)) == ["a/0", "a/2", "a/3", "b/0"]
    assert ids(solved([make_trajectory(3.0, success=False), make_trajectory(0.0, success=True)])) == ["t0/0"]


def test_caps_and_balance():
    assert ids(capped(solved(EPISODES), 2)) == ["a/0", "a/2", "b/0"]
    assert capped(EPISODES, 0) == EPISODES
    assert ids(balanced(solved(EPISODES))) == ["a/0", "a/2", "a/3", "b/0", "b/0", "b/0"]
    assert ids(selection(solved, most=2, balance=True)(EPISODES)) == ["a/0", "a/2", "b/0", "b/0"]
    assert balanced([]) == []


def chain(number, *codes, rewards=None):
    rewards = rewards or [1.0] * len(codes)
    return [
        made(task, number, reward, code)
        for task, code, reward in zip((A, B, C), codes, rewards, strict=False)
    ]


DEFINE, USE, NOT = "def f(): pass", "f()", "x = 1"


@pytest.mark.parametrize(
    ("episodes", "kept"),
    [
        (chain(0, DEFINE, USE), True),
        (chain(0, DEFINE, NOT), False),
        (chain(0, DEFINE, f"{DEFINE}\n{USE}"), False),
        (chain(0, NOT, USE), False),
        (chain(0, DEFINE, USE, rewards=[0.0, 1.0]), False),
        (chain(0, DEFINE, USE, rewards=[1.0, 0.5]), False),
        (chain(0, DEFINE), False),  # its second episode was dropped
    ],
)
def test_a_chain_is_kept_if_all_is_solved_and_the_second_used_the_first(episodes, kept):
    others = chain(1, DEFINE, USE)
    chosen = skilled_chains(2)([*episodes, *others])
    assert ids(chosen) == (ids(episodes) if kept else []) + ["a/1", "b/1"]
    interleaved = skilled_chains(2)([episodes[0], others[0], *episodes[1:], others[1]])
    assert sorted(ids(interleaved)) == sorted(ids(chosen))


def test_every_later_task_of_a_longer_chain_must_use_something():
    assert len(skilled_chains(3)(chain(0, DEFINE, USE, USE))) == 3
    assert skilled_chains(3)(chain(0, DEFINE, USE, NOT)) == []
    assert skilled_chains(3)(chain(0, DEFINE, USE)) == []


def test_as_a_filter_repeated_episodes_are_repeated():
    credited = [Credited(episode, np.ones(1, np.float32)) for episode in EPISODES]
    kept = selecting(selection(solved, balance=True))(credited)
    assert ids([item.trajectory for item in kept]) == ["a/0", "a/2", "a/3", "b/0", "b/0", "b/0"]
    assert kept[3] is kept[4] is credited[4]


def test_the_log_counts_tasks_without_a_success():
    failed = made(A, 4, code="1/0", status=ExecStatus.RUNTIME_ERROR)
    groups = [Group(task, tuple(e for e in [*EPISODES, failed] if e.task is task)) for task in (A, B, C)]
    metrics = selection_metrics(groups, selection(solved, balance=True))
    assert metrics == {
        "select/kept_frac": pytest.approx(5 / 7),
        "select/tasks_frac": pytest.approx(2 / 3),
        "select/per_task": pytest.approx(5 / 3),
        "select/failed_step_frac": pytest.approx(1 / 5),
    }
    assert selection_metrics([], solved)["select/kept_frac"] == 0
