"""Step returns at hand-computed numbers, with subgoals paid, shaped, or broadcast by mistake."""

from dataclasses import replace

import numpy as np
import pytest

from jaxagent.credit.group import group_mean, leave_one_out, per_group
from jaxagent.credit.step_returns import step_returns
from jaxagent.errors import ConfigError, RolloutError
from jaxagent.rewards.returns import STEP_REWARDS
from jaxagent.rewards.subgoals import Subgoal, progress_shaping
from jaxagent.types import Group, Status
from tests.made_episodes import make_group, make_step, make_task, make_trajectory


def episode(i, reward, paid, **changes):
    """An episode whose steps were paid so much of its return."""
    steps = [make_step(k, text=f"s{k}") for k in range(len(paid))]
    made = make_trajectory(reward, steps=steps, rollout=i)
    return replace(made, extra={STEP_REWARDS: tuple(paid)}, **changes)


def group(*episodes):
    return Group(make_task(), tuple(episode(i, *e) for i, e in enumerate(episodes)))


def advantages(credit, *groups):
    return [item.advantage_K for item in credit(groups)]


def close(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


# returns 1.1, of which .1 at the second step; .1 at the second step; 0
THREE = group((1.1, [0, 0.1, 0]), (0.1, [0, 0.1]), (0.0, [0, 0]))


def test_returns_from_each_step_relative_to_the_rollouts_that_took_it():
    """gamma .5: returns [.3, .6, 1], [.05, .1], [0, 0]; means .11667, .23333, and one alone."""
    expected = [[0.183333, 0.366667, 0], [-0.066667, -0.133333], [-0.116667, -0.233333]]
    close(advantages(step_returns(gamma=0.5), THREE), expected)
    others = [[1.5 * a for a in row] for row in expected]  # n / (n - 1) = 3 / 2 at both shared steps
    close(advantages(step_returns(leave_one_out, gamma=0.5), THREE), others)


def test_a_step_behind_a_subgoal_is_not_credited_with_it():
    """All succeed; one is paid at its first step, one at its second. Broadcast, both would get 0."""
    paid = group((1.1, [0.1, 0]), (1.1, [0, 0.1]))
    assert advantages(per_group(group_mean), paid)[0].tolist() == [0, 0]
    close(advantages(step_returns(), paid), [[0, -0.05], [0, 0.05]])


def test_the_first_steps_baseline():
    """gamma 1: returns [1.1, 1.1, 1], [.1, .1], [0, 0] minus .4; leave-one-out minus .05, .55, .6."""
    start = step_returns(baseline="start")
    close(advantages(start, THREE), [[0.7, 0.7, 0.6], [-0.3, -0.3], [-0.4, -0.4]])
    others = step_returns(leave_one_out, baseline="start")
    close(advantages(others, THREE), [[1.05, 1.05, 0.95], [-0.45, -0.45], [-0.6, -0.6]])


@pytest.mark.parametrize("estimate", [group_mean, leave_one_out])
def test_without_a_discount_and_rewards_on_the_way_it_is_the_trajectory_level_estimator(estimate):
    uneven = Group(
        make_task(),
        tuple(make_trajectory(r, steps=["ok"] * n, rollout=n) for r, n in [(1.0, 3), (0.5, 1), (0.0, 2)]),
    )
    close(
        advantages(step_returns(estimate, baseline="start"), uneven), advantages(per_group(estimate), uneven)
    )
    even = make_group([1.0, 0.5, 0.0], steps=["ok", "ok"])
    close(advantages(step_returns(estimate), even), advantages(per_group(estimate), even))


@pytest.mark.parametrize("baseline", ["step", "start"])
def test_equal_returns_teach_exactly_nothing(baseline):
    same = make_group([0.1 + 0.2, 0.3, 0.3], steps=["ok", "ok"])
    assert all((a == 0).all() for a in advantages(step_returns(baseline=baseline), same))
    alone = make_group([0.7], steps=["ok", "ok"])
    assert advantages(step_returns(baseline=baseline), alone)[0].tolist() == [0, 0]


def test_potentials_take_what_was_reached_off_later_steps():
    """s0 and s1 are subgoals of .25: F = gamma Phi' - Phi, and returns of the same gamma hold -Phi(s_k)."""
    goals = [Subgoal(text, message=text, weight=0.25) for text in ("s0", "s1")]
    shaping = progress_shaping(goals, gamma=0.9, cap=1.0)
    three = make_trajectory(1.0, steps=[make_step(k, text=f"s{k}") for k in range(3)])
    assert shaping(three) == pytest.approx([0.225, 0.9 * 0.5 - 0.25, -0.5])
    assert shaping(make_trajectory(0.0, steps=[])).shape == (0,)
    assert shaping(make_trajectory(0.0, steps=[make_step(0, text="s0")])).tolist() == [0]
    idle = make_trajectory(1.0, steps=[make_step(k, text="x") for k in range(3)], rollout=1)
    both = Group(make_task(), (three, idle))
    found = advantages(step_returns(gamma=0.9, shaping=shaping), both)
    close(found, [[0, -0.125, -0.25], [0, 0.125, 0.25]])


def test_the_environments_own_rewards():
    steps = [replace(make_step(k), reward=r) for k, r in enumerate([0.0, 1.0])]
    paid = make_trajectory(5.0, steps=steps)  # its return is not read
    unpaid = make_trajectory(5.0, steps=["ok", "ok"], rollout=1)
    found = advantages(step_returns(gamma=0.5, rewards="environment"), Group(make_task(), (paid, unpaid)))
    close(found, [[0.25, 0.5], [-0.25, -0.5]])


def test_survivors_only_and_empty_groups_and_episodes():
    lost = episode(9, 99.0, [0, 0], status=Status.CANCELLED)
    nothing = make_trajectory(0.0, steps=[], rollout=8)
    with_both = replace(THREE, trajectories=(lost, *THREE.trajectories, nothing))
    found = advantages(step_returns(gamma=0.5), with_both)
    close(found[:3], advantages(step_returns(gamma=0.5), THREE))
    assert found[3].shape == (0,)
    started = advantages(step_returns(baseline="start"), with_both)[0]
    close([started], [[0.8, 0.8, 0.7]])  # the empty episode's return of 0 is in the baseline: 1.2 / 4
    assert step_returns()([]) == step_returns()([Group(make_task(), ())]) == []


def test_bad_options_and_rewards_are_refused():
    with pytest.raises(ConfigError, match=r"gamma=1\.5"):
        step_returns(gamma=1.5)
    with pytest.raises(RolloutError, match=r"t0/0.*not finite"):
        step_returns()([make_group([float("nan"), 0.0])])
