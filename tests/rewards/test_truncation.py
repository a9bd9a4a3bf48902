"""Episodes that did not end by themselves: evaluated, zeroed, masked or penalised, as the options say."""

from dataclasses import replace

import numpy as np
import pytest

from jaxagent.batch.targets import policy_samples, seq_mean_token_mean
from jaxagent.credit.group import group_mean, per_group
from jaxagent.errors import ConfigError
from jaxagent.recipes.grpo import GrpoOptions
from jaxagent.recipes.rewards import returns_of
from jaxagent.rewards.outcome import success
from jaxagent.rewards.returns import Changed, each
from jaxagent.rewards.truncation import exponential
from jaxagent.types import Group, Status
from tests.made_episodes import make_step, make_task, make_trajectory

ENDS = (Status.DONE, Status.STEP_LIMIT, Status.LENGTH)


def scored(**reward):
    """Three solved episodes of 8 tokens, one an ending; (returns, which are masked)."""
    episodes = [
        make_trajectory(1.0, steps=[make_step(0, tokens=8)], status=status, rollout=i)
        for i, status in enumerate(ENDS)
    ]
    options = GrpoOptions.parse({"reward": {"outcome": "success", **reward}}).reward
    (group,) = returns_of(options)([Group(make_task(), tuple(episodes))])
    return [t.reward for t in group.trajectories], [t.masked for t in group.trajectories]


LINEAR = {"limit": 10, "buffer": 4}  # 8 tokens cost .5


@pytest.mark.parametrize(
    ("options", "returns", "masked"),
    [
        ({}, [1, 1, 1], [0, 0, 0]),
        ({"on_step_limit": "zero"}, [1, 0, 1], [0, 0, 0]),
        ({"on_overflow": "zero"}, [1, 1, 0], [0, 0, 0]),
        ({"on_step_limit": "mask"}, [1, 1, 1], [0, 1, 0]),
        ({"on_overflow": "mask", "on_step_limit": "zero"}, [1, 0, 1], [0, 0, 1]),
        ({"overlong": LINEAR}, [0.5, 0.5, 0.5], [0, 0, 0]),
        ({"overlong": LINEAR, "on_overflow": "penalty"}, [0.5, 0.5, 0.0], [0, 0, 0]),
        ({"overlong": {"kind": "filter", "limit": 8}}, [1, 1, 1], [0, 0, 1]),
        ({"overlong": {"kind": "filter", "limit": 7}}, [1, 1, 1], [1, 1, 1]),
        ({"overlong": {"kind": "exp", "limit": 10, "buffer": 4, "tau": 2}}, [0.367879] * 3, [0, 0, 0]),
    ],
)
def test_what_an_episode_is_worth_by_how_it_ended(options, returns, masked):
    found, marks = scored(**options)
    assert found == pytest.approx(returns, abs=1e-6)
    assert marks == [bool(mark) for mark in masked]


def test_exponential_decay():
    """R 1, over 2, tau 2 -> .3679; nothing below the start."""
    term = exponential(success, start=6, tau=2.0)
    lengths = [make_trajectory(1.0, steps=[make_step(0, tokens=n)]) for n in (5, 6, 8)]
    assert [term(t) for t in lengths] == pytest.approx([1, 1, 0.367879], abs=1e-6)
    with pytest.raises(ConfigError, match="tau=0"):
        exponential(success, start=0, tau=0.0)


def test_a_masked_episode_stays_in_the_baseline_and_out_of_every_count():
    """R = 1, 0, 0, 1 with the second cut off: A is .5, -.5, -.5, .5 still, and three sequences are averaged."""
    rewards = zip((1.0, 0.0, 0.0, 1.0), (Status.DONE, Status.LENGTH, Status.DONE, Status.DONE))
    task = make_task()
    episodes = [make_trajectory(r, task=task, status=s, rollout=i) for i, (r, s) in enumerate(rewards)]
    options = GrpoOptions.parse({"reward": {"outcome": "success", "on_overflow": "mask"}}).reward
    credited = per_group(group_mean)(returns_of(options)([Group(task, tuple(episodes))]))
    assert [float(item.advantage_K[0]) for item in credited] == [0.5, -0.5, -0.5, 0.5]
    samples = policy_samples(credited)
    weights, count = seq_mean_token_mean(samples, "pg")
    assert count == 3.0
    assert [bool(weight.any()) for weight in weights] == [True, False, True, True]
    assert not np.any(samples[1].advantage_T)


def test_a_floor_holds_the_return_up():
    task = make_task()
    bad = make_trajectory(0.0, task=task, steps=[make_step(k) for k in range(9)])
    for floor, value in ((None, -0.4), (0.0, 0.0)):
        reward = {"outcome": "success", "length": {"target": 1}, "floor": floor}
        options = GrpoOptions.parse({"reward": reward}).reward
        (group,) = returns_of(options)([Group(task, (bad,))])
        assert group.trajectories[0].reward == pytest.approx(value)


def test_what_wraps_a_judge_closes_it():
    class Judged:
        closed = 0

        def __call__(self, groups):
            return each(success)(groups)

        def close(self):
            self.closed += 1

    judge = Judged()
    wrapped = Changed(Changed(judge), after=lambda t: replace(t, masked=True))
    assert wrapped([Group(make_task(), (make_trajectory(1.0),))])[0].trajectories[0].masked
    wrapped.close()
    assert judge.closed == 1
    Changed(each(success)).close()  # a plain function holds nothing


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ({"on_overflow": "penalty"}, "takes its size from `overlong`"),
        ({"on_overflow": "penalty", "overlong": {"kind": "filter", "limit": 3}}, "takes its size from"),
        ({"on_step_limit": "penalty"}, "on_step_limit"),
        ({"overlong": {"limit": 10}}, "buffer=0 must be above 0"),
        ({"overlong": {"limit": 10, "buffer": 11}}, "buffer=11"),
        ({"overlong": {"kind": "exp", "limit": 10}}, "needs tau above 0"),
        ({"overlong": {"kind": "filter", "limit": 10, "buffer": 2}}, "does not read buffer"),
        ({"overlong": {"limit": 10, "buffer": 4, "tau": 2}}, "does not read tau"),
    ],
)
def test_options_that_say_nothing_are_refused(reward, message):
    with pytest.raises(ConfigError, match=message):
        GrpoOptions.parse({"reward": reward})
