import numpy as np
import pytest

from jaxagent.credit.group import (
    group_mean,
    group_std,
    leave_one_out,
    per_group,
    per_group_steps,
    zero_variance,
)
from jaxagent.errors import ConfigError, RolloutError
from jaxagent.types import Group, Status
from tests.made_episodes import make_group, make_task, make_trajectory

R = [1.0, 0.5, 0.0, 0.0]


def scalars(credit, *groups):
    return [float(item.advantage_K[0]) for item in credit(groups)]


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [
        (group_mean, [0.625, 0.125, -0.375, -0.375]),
        (leave_one_out, [0.833333, 0.166667, -0.5, -0.5]),
        (group_std(ddof=1, eps=1e-6), [1.30558, 0.261116, -0.783348, -0.783348]),
        (group_std(ddof=0, eps=1e-8), [1.507557, 0.301511, -0.904534, -0.904534]),
        (group_std(ddof=0, eps=0.0, std_floor=1.0), [0.625, 0.125, -0.375, -0.375]),
    ],
)
def test_hand_numbers(estimate, expected):
    assert scalars(per_group(estimate), make_group(R)) == pytest.approx(expected, abs=1e-6)


def test_the_deviations_of_the_example():
    """Mean .375, std .414578 (population) and .478714; an advantage times them is the return's distance again."""
    reward_G = np.array(R)
    for ddof, std in ((0, 0.414578), (1, 0.478714)):
        found = group_std(ddof=ddof, eps=0.0)(reward_G)
        assert found * std == pytest.approx(reward_G - 0.375, abs=1e-6)


def test_two_rollouts_show_the_factor():
    pair = make_group([1.0, 0.0])
    assert scalars(per_group(group_mean), pair) == [0.5, -0.5]
    assert scalars(per_group(leave_one_out), pair) == [1.0, -1.0]


def test_loop_numbers():
    group = make_group([1.0, 0.5, 0.505, 0.495])
    assert scalars(per_group(leave_one_out), group) == pytest.approx(
        [0.5, -0.166667, -0.16, -0.173333], abs=1e-6
    )
    six = make_group([0.5, 0.505, 0.495, 0.5, 0.5, 0.5])
    assert scalars(per_group(leave_one_out), six) == pytest.approx([0.0, 0.006, -0.006, 0, 0, 0], abs=1e-9)


def test_sums_and_unit_std():
    reward_G = np.random.default_rng(0).random(7)
    for estimate in (group_mean, leave_one_out):
        assert estimate(reward_G).sum() == pytest.approx(0, abs=1e-12)
    for ddof in (0, 1):
        assert group_std(ddof=ddof, eps=0.0)(reward_G).std(ddof=ddof) == pytest.approx(1)


@pytest.mark.parametrize("estimate", [group_mean, leave_one_out, group_std(eps=1e-8)])
def test_float_noise_is_no_advantage(estimate):
    for rewards in ([0.1 + 0.2, 0.3, 0.3], [1 / 3] * 8, [5 / 6] * 8, [float(np.float32(0.7)), 0.7]):
        assert scalars(per_group(estimate), make_group(rewards)) == [0.0] * len(rewards)
    assert zero_variance(np.array([0.1 + 0.2, 0.3]))
    assert not zero_variance(np.array([0.3, 0.301]))


def drift(value):
    """One of eight equal returns minus their mean, in float32 and summed in order."""
    reward_G, total = np.full(8, value, np.float32), np.float32(0)
    for reward in reward_G:
        total += reward
    return float(reward_G[0] - total / np.float32(8))


def test_what_one_ulp_would_become_without_a_tolerance():
    """Eight returns of 1/3: 2.98e-8 off their mean, .7488 after division by the deviation with an eps of 1e-8."""
    assert [drift(1 / 3), drift(5 / 6)] == pytest.approx([2.9802e-08, -5.9605e-08], rel=1e-4)
    noise = drift(1 / 3)
    assert noise / (noise + 1e-8) == pytest.approx(0.7488, abs=1e-4)
    assert noise / (noise + 1e-6) == pytest.approx(0.0289, abs=1e-4)
    for eps in (1e-8, 1e-6):
        assert (
            scalars(per_group(group_std(ddof=0, eps=eps)), make_group([1 / 3] * 7 + [1 / 3 + noise]))
            == [0.0] * 8
        )


def test_tolerance_is_the_callers():
    assert scalars(per_group(group_mean, tolerance=0.1), make_group([0.5, 0.55])) == [0.0, 0.0]


def test_survivors_only():
    """Dropping one of four reproduces the formula for three, whatever the lost episode's reward says."""
    lost = make_trajectory(99.0, status=Status.ENV_FAILED)
    whole = make_group([1.0, 0.5, 0.0])
    with_lost = Group(whole.task, (lost, *whole.trajectories))
    assert scalars(per_group(leave_one_out), with_lost) == scalars(per_group(leave_one_out), whole)


def test_groups_of_unequal_size_stay_apart():
    a = make_group([1.0, 0.0, 0.0], task=make_task("a"))
    b = make_group([0.0, 0.0, 0.0, 4.0], task=make_task("b"))
    assert scalars(per_group(group_mean), a, b) == scalars(per_group(group_mean), a) + scalars(
        per_group(group_mean), b
    )


def test_the_same_task_in_two_groups_keeps_two_baselines():
    first, second = make_group([1.0, 1.0]), make_group([0.0, 0.0])
    assert scalars(per_group(group_mean), first, second) == [0.0] * 4


def test_singletons():
    one = make_group([0.7])
    assert scalars(per_group(leave_one_out), one) == [0.0]
    assert scalars(per_group(group_std(), singleton="raw"), one) == pytest.approx([0.7])
    assert scalars(per_group(group_mean, singleton="drop"), one, make_group(R)) == pytest.approx(
        [0.625, 0.125, -0.375, -0.375]
    )
    with pytest.raises(ConfigError, match="drop"):
        per_group(group_mean, singleton="nul")


def test_an_empty_group_and_no_groups():
    assert per_group(leave_one_out)([Group(make_task(), ())]) == []
    assert per_group(leave_one_out)([]) == []


def test_broadcast_to_steps_as_float32():
    item = per_group(group_mean)([make_group([1.0, 0.0], steps=["ok", "ok", "ok"])])[0]
    assert item.advantage_K.dtype == np.float32
    assert item.advantage_K.tolist() == [0.5, 0.5, 0.5]


def test_a_trajectory_without_steps_stays_in_the_baseline():
    task = make_task()
    group = Group(task, (make_trajectory(0.0, steps=[]), make_trajectory(1.0)))
    empty, full = per_group(group_mean)([group])
    assert empty.advantage_K.shape == (0,)
    assert full.advantage_K.tolist() == [0.5]


def test_step_level_estimators_are_lifted_too():
    credit = per_group_steps(lambda alive: [np.arange(len(t.steps), dtype=np.float64) for t in alive])
    assert credit([make_group([0.0], steps=["ok"] * 3)])[0].advantage_K.tolist() == [0.0, 1.0, 2.0]


def test_a_return_that_is_not_finite_is_refused():
    with pytest.raises(RolloutError, match=r"t0/1.*nan"):
        per_group(group_mean)([make_group([1.0, float("nan")])])


def test_bad_constants_are_refused():
    with pytest.raises(ConfigError, match="ddof"):
        group_std(ddof=2)
