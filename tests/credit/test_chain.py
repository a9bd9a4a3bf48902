"""Chains: which episodes belong together, which chains broke off, and SAGE's two kinds of advantage."""

import numpy as np
import pytest

from jaxagent.credit.chain import chain_mean, cut, linked
from jaxagent.credit.group import group_mean, per_group
from jaxagent.errors import RolloutError
from jaxagent.types import Dropped, Group
from tests.made_episodes import make_group, make_task, make_trajectory

Q1, Q2 = make_task("q1", scenario="s"), make_task("q2", scenario="s")


def position(task, rewards, *, at, dropped=()):
    """rewards: rollout number -> return."""
    episodes = [make_trajectory(r, task=task, rollout=j, steps=["ok", "ok"]) for j, r in rewards.items()]
    lost = tuple(Dropped(task.task_id, j, "hang") for j in dropped)
    return Group(task, tuple(episodes), lost, position=at)


FIRST = position(Q1, {0: 2.0, 1: 1.0, 2: 0.0, 3: 1.0}, at=0)
SECOND = position(Q2, {0: 2.0, 1: 1.0, 2: 2.0, 3: 0.0}, at=1)


def advantages(credited, task):
    return {c.trajectory.rollout: c.advantage_K.tolist() for c in credited if c.trajectory.task is task}


def test_every_position_has_a_baseline_of_its_own():
    credited = per_group(group_mean)([FIRST, SECOND])
    assert advantages(credited, Q1) == {0: [1.0] * 2, 1: [0.0] * 2, 2: [-1.0] * 2, 3: [0.0] * 2}
    assert advantages(credited, Q2) == {0: [0.75] * 2, 1: [-0.25] * 2, 2: [0.75] * 2, 3: [-1.25] * 2}


def test_a_chain_shares_the_sum_of_its_returns():
    """Sums 4, 2, 2, 1."""
    credited = chain_mean([FIRST, SECOND])
    assert advantages(credited, Q1) == advantages(credited, Q2)
    assert advantages(credited, Q1) == {0: [1.75] * 2, 1: [-0.25] * 2, 2: [-0.25] * 2, 3: [-1.25] * 2}


def test_episodes_are_paired_by_their_number_whatever_was_dropped():
    second = position(Q2, {3: 1.0, 0: 2.0}, at=1, dropped=[1])
    first = position(Q1, {0: 2.0, 1: 1.0, 3: 1.0}, at=0, dropped=[2])
    chains = linked([second, first])
    assert {key: list(chain) for key, chain in chains.items()} == {
        ("s", 0): [0, 1],
        ("s", 1): [0],
        ("s", 3): [0, 1],
    }
    assert chains["s", 3][1] is second.trajectories[0]
    assert cut([first, second]) == {("s", 1)}  # 2 never went on
    credited = chain_mean([first, second])
    assert advantages(credited, Q1) == advantages(credited, Q2) == {0: [1.0] * 2, 3: [-1.0] * 2}


def test_chains_of_one_scenario_in_two_groups_have_two_baselines():
    again = [
        position(Q2, {4: 1.0, 5: 0.0}, at=0),
        position(Q1, {4: 0.0, 5: 0.0}, at=1),
    ]
    credited = chain_mean([FIRST, again[0], SECOND, again[1]])
    assert len(credited) == 12
    assert advantages(credited, Q2)[4] == [0.5] * 2
    assert advantages(credited, Q1)[5] == [-0.5] * 2


def test_a_return_that_is_not_finite_is_an_error():
    with pytest.raises(RolloutError, match="expected a finite number"):
        chain_mean([make_group([float("nan"), 1.0], task=Q1)])


def test_equal_sums_give_exactly_nothing_and_one_chain_too():
    flat = [position(Q1, {0: 0.1, 1: 0.3}, at=0), position(Q2, {0: 0.2, 1: 0.0}, at=1)]
    assert all(not c.advantage_K.any() for c in chain_mean(flat))
    alone = [position(Q1, {0: 3.0}, at=0)]
    np.testing.assert_array_equal(chain_mean(alone)[0].advantage_K, [0, 0])
