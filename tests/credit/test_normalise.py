"""Normalised returns."""

import numpy as np
import pytest

from jaxagent.credit.normalise import normalised, on_normalised
from jaxagent.types import Credited
from tests.made_episodes import make_group


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("identity", [1, 0, 0, 0]),
        ("mean", [0.75, -0.25, -0.25, -0.25]),
        ("mean_std", [1.5, -0.5, -0.5, -0.5]),
    ],
)
def test_methods(how, expected):
    np.testing.assert_allclose(normalised(np.array([1.0, 0, 0, 0]), how), expected, atol=1e-5)


def test_the_clip_holds_failures_nearer_than_successes():
    reward_N = np.array([10.0] + [0.0] * 20)
    assert normalised(reward_N, "asym_clip").max() == 3.0
    assert normalised(-reward_N, "asym_clip").min() == -1.0


def test_equal_returns_say_nothing():
    assert normalised(np.ones(3), "mean_std").tolist() == [0, 0, 0]
    assert normalised(np.ones(3), "identity").tolist() == [1, 1, 1]


def seen(groups):
    return [Credited(t, np.full(1, t.reward, np.float32)) for group in groups for t in group.trajectories]


@pytest.mark.parametrize(("by", "expected"), [("group", [0.5, -0.5, 0, 0]), ("batch", [0, -1, 0.5, 0.5])])
def test_within_a_group_or_over_the_batch(by, expected):
    groups = [make_group([1.0, 0.0]), make_group([1.5, 1.5])]
    found = [float(item.advantage_K[0]) for item in on_normalised(seen, how="mean", by=by)(groups)]
    assert found == pytest.approx(expected)
    assert [t.reward for group in groups for t in group.trajectories] == [1.0, 0.0, 1.5, 1.5]
    assert on_normalised(seen, how="mean", by=by)([]) == []
