"""The running-mean baseline: what it is in each iteration, and that it goes on after a stop."""

import json
from dataclasses import replace

import numpy as np
import pytest

from jaxagent.credit.batch import reinforce
from jaxagent.data.average import ReturnAverage
from jaxagent.data.tasks import TaskSource
from jaxagent.errors import ConfigError
from jaxagent.rewards.step_rewards import environment_rewards
from jaxagent.types import Group
from tests.made_episodes import make_group, make_step, make_task, make_trajectory


def average(**options):
    return ReturnAverage(TaskSource([make_task("a"), make_task("b")], tasks=1, rollouts=2), **options)


def test_the_mean_is_of_what_credit_is_of():
    steps = [replace(make_step(k), reward=1.0) for k in range(2)]
    source = average(rewards=environment_rewards)
    source.observe([Group(make_task("a"), (make_trajectory(9.0, steps=steps),))])
    assert source.baseline(np.zeros(0)) == 2.0


def test_no_return_is_its_own_baseline():
    """Means 1, then .5, then 0 with decay .9: baselines 0, 1, .95, and .855 for what follows."""
    source = average()
    credit = reinforce(baseline=source.baseline)
    for rewards, before in (([1.0, 1.0], 0.0), ([1.0, 0.0], 1.0), ([0.0, 0.0], 0.95)):
        source.next(0)
        group = make_group(rewards)
        found = [float(item.advantage_K[0]) for item in credit([group])]
        assert found == pytest.approx([r - before for r in rewards])
        assert source.observe([group])["adv/baseline"] == pytest.approx(before)
    assert source.baseline(np.zeros(0)) == pytest.approx(0.855)
    source.observe([])  # an iteration without a survivor says nothing
    assert source.baseline(np.zeros(0)) == pytest.approx(0.855)


def test_it_goes_on_with_its_tasks_and_its_mean():
    source, again = average(), average()
    source.next(0)
    source.observe([make_group([1.0, 0.0])])
    again.restore(json.loads(json.dumps(source.state())))
    assert again.baseline(np.zeros(0)) == 0.5
    assert [plan.task for plan in again.next(1)] == [plan.task for plan in source.next(1)]


def test_a_decay_of_one_would_never_learn():
    with pytest.raises(ConfigError, match="decay=1"):
        average(decay=1.0)
