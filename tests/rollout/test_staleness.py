from dataclasses import replace

import numpy as np
import pytest

from jaxagent.rollout.staleness import fresh, lag, lag_metrics, oldest, sampled_as_old
from jaxagent.types import Group
from tests.made_episodes import make_step, make_task, make_trajectory

HANDED = (0, 4, 8, 12)  # four optimiser steps an iteration, now at version 12


def played_by(*versions):
    return make_trajectory(steps=[replace(make_step(k), version=v) for k, v in enumerate(versions)])


def test_lag_counts_hand_offs_not_optimiser_steps():
    assert [lag(version, HANDED) for version in (12, 8, 4, 0)] == [0, 1, 2, 3]


def test_an_episode_is_as_old_as_its_oldest_step():
    assert oldest(played_by(4, 8, 12), HANDED) == 2
    assert oldest(played_by(), HANDED) == 0


def test_what_is_too_old_is_dropped_and_counted():
    """Lags 0, 1, 2, 3 under max_lag 2: kept, kept, kept, dropped."""
    episodes = [played_by(version) for version in (12, 8, 4, 0)]
    (group,) = fresh([Group(make_task(), tuple(episodes))], HANDED, max_lag=2)
    assert [t in group.trajectories for t in episodes] == [True, True, True, False]
    assert [(item.reason, item.message) for item in group.dropped] == [("stale", "a step lags 3 hand-offs")]
    assert lag_metrics([group], HANDED) == {"async/lag_mean": 1.0, "async/lag_max": 2.0}
    assert lag_metrics([Group(make_task(), ())], HANDED) == {}


def test_the_sampler_becomes_the_old_policy():
    (group,) = sampled_as_old([Group(make_task(), (played_by(8),))])
    (segment,) = group.trajectories[0].segments
    np.testing.assert_array_equal(segment.logprobs["old"], segment.logprobs["behaviour"])
    with pytest.raises(KeyError):
        _ = played_by(8).segments[0].logprobs["old"]
