import numpy as np
import pytest

from jaxagent.credit.filters import (
    abs_min,
    by_success,
    chain,
    magnitude,
    most_varied,
    positive_only,
    spread,
    success_only,
    varies,
    zero_std,
)
from jaxagent.credit.group import group_mean, leave_one_out, per_group
from jaxagent.errors import ConfigError
from jaxagent.types import Credited, Group
from tests.made_episodes import make_group, make_task, make_trajectory

LOO = per_group(leave_one_out)


def credited(*values):
    return [Credited(make_trajectory(), np.full(1, v, np.float32)) for v in values]


def values(items):
    return [round(float(item.advantage_K[0]), 6) for item in items]


def test_loop_keeps_all_or_nothing():
    assert len(abs_min(0.01)(LOO([make_group([1.0, 0.5, 0.505, 0.495])]))) == 4
    assert abs_min(0.01)(LOO([make_group([0.5, 0.505, 0.495, 0.5, 0.5, 0.5])])) == []


def test_survivors_are_rounded_up_with_the_largest_dropped_ones_in_order():
    items = credited(0.001, 0.5, -0.009, 0.0, -0.4, 0.3)
    assert values(abs_min(0.01)(items)) == [0.5, -0.4, 0.3]
    assert values(abs_min(0.01, multiple=4)(items)) == [0.5, -0.009, -0.4, 0.3]
    assert len(abs_min(0.01, multiple=8)(items)) == 6
    assert abs_min(0.01, multiple=4)(credited(0.0, 0.001)) == []
    assert abs_min(0.01)([]) == []


def test_a_trajectory_counts_by_its_largest_step():
    item = Credited(make_trajectory(steps=["ok", "ok"]), np.array([0.0, -0.2], np.float32))
    assert magnitude(item) == pytest.approx(0.2)
    assert magnitude(Credited(make_trajectory(steps=[]), np.zeros(0, np.float32))) == 0
    assert len(abs_min(0.1)([item])) == 1


def test_sign_and_success():
    group = make_group([1.0, 0.9, 0.0])
    assert values(positive_only(LOO([group]))) == pytest.approx([0.55, 0.4], abs=1e-6)
    assert [item.trajectory.reward for item in success_only(LOO([group]))] == [1.0]


def test_success_reads_the_verdict_not_the_shaped_return():
    shaped = Credited(make_trajectory(1.0, success=False), np.ones(1, np.float32))
    assert success_only([shaped]) == []


def test_zero_variance_groups_are_left_out():
    same, differ = (
        make_group([0.1 + 0.2, 0.3], task=make_task("a")),
        make_group([0.0, 1.0], task=make_task("b")),
    )
    kept = zero_std(per_group(group_mean))([same, differ])
    assert {item.trajectory.task.task_id for item in kept} == {"b"}


def test_a_continuous_shaping_term_hides_zero_variance():
    task = make_task()
    group = Group(task, tuple(make_trajectory(r, success=True, rollout=i) for i, r in enumerate((0.9, 0.95))))
    assert len(zero_std(LOO)([group])) == 2
    assert zero_std(LOO, metric=by_success)([group]) == []


def test_a_limit_takes_the_first_groups_that_vary_and_no_part_of_one():
    groups = [
        make_group(r, task=make_task(f"t{i}")) for i, r in enumerate(([0, 1], [1, 1], [1, 0, 0], [0, 1]))
    ]
    kept = zero_std(per_group(group_mean), limit=2)(groups)
    assert [item.trajectory.task.task_id for item in kept] == ["t0"] * 2 + ["t2"] * 3
    assert [varies()(group) for group in groups] == [True, False, True, True]


def test_zero_variance_keeps_what_dapo_keeps():
    """Groups of all failures and of all successes teach nothing."""
    rewards = ([0, 0, 0], [1, 1, 1], [1, 0, 0], [0, 1, 1])
    assert [varies()(make_group(r)) for r in rewards] == [False, False, True, True]


def starpo():
    rewards = ([1, 0, 1, 0], [1, 1, 1, 1], [0.5, 0.5, 0.5, 0.4], [1, 0, 0, 0])
    return [make_group(r, task=make_task(f"t{i}")) for i, r in enumerate(rewards)]


def test_the_groups_that_vary_most_are_kept():
    assert [spread(group) for group in starpo()] == pytest.approx([0.57735, 0, 0.05, 0.5], abs=1e-5)

    def kept(groups, **options):
        credited = most_varied(per_group(group_mean), **options)(groups)
        return list(dict.fromkeys(item.trajectory.task.task_id for item in credited))

    assert kept(starpo()) == ["t0"]
    assert kept(starpo(), share=0.5) == ["t0", "t3"]
    assert kept(starpo(), rank_by="std_rev") == ["t1"]
    assert kept(starpo()[:2], share=0.25) == ["t0"]  # fewer groups than 1 / share: one stays
    assert kept([starpo()[3], starpo()[3]], share=0.5) == ["t3"]
    many = [make_group([i, 0.0], task=make_task(f"m{i}")) for i in range(1, 101)]
    assert len(kept(many, share=0.29)) == 29  # .29 x 100 is 28.999999999999996
    same = [make_group([1, 1], task=make_task(name)) for name in "ab"]
    assert kept(same) == ["a", "b"]  # no group varies: no reason to choose
    with pytest.raises(ConfigError, match="rank_by='mean'"):
        most_varied(per_group(group_mean), rank_by="mean")


def test_filters_compose_from_left_to_right():
    items = credited(0.5, -0.5, 0.001)
    assert values(chain(positive_only, abs_min(0.01))(items)) == [0.5]


def test_bad_constants_are_refused():
    with pytest.raises(ConfigError, match="multiple=0"):
        abs_min(0.01, multiple=0)
