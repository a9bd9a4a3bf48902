"""GiGPO at the specification's numbers, and what it must reduce to."""

from dataclasses import replace

import numpy as np
import pytest

from jaxagent.credit.gigpo import anchor_ids, episode_advantages, gigpo
from jaxagent.credit.group import group_mean, group_std, per_group
from jaxagent.credit.stats import credit_metrics
from jaxagent.errors import ConfigError
from jaxagent.rewards.step_rewards import discounted, outcome_rewards
from jaxagent.types import Group, Status
from tests.made_episodes import make_step, make_task, make_trajectory

STATES = [["s0", "s1", "s2"], ["s0", "s1", "s3"], ["s0", "s4"]]
RETURNS = [10.0, 0.0, 10.0]


def episode(i, states, reward, **changes):
    steps = [replace(make_step(k), anchor=state) for k, state in enumerate(states)]
    return replace(make_trajectory(reward, steps=steps, rollout=i), **changes)


GROUP = Group(make_task(), tuple(episode(i, s, r) for i, (s, r) in enumerate(zip(STATES, RETURNS))))


def advantages(group=GROUP, **options):
    return [item.advantage_K for item in gigpo(**options)([group])]


def close(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_step_returns():
    close(
        [discounted(outcome_rewards(t), 0.95) for t in GROUP.trajectories],
        [[9.025, 9.5, 10], [0, 0, 0], [9.5, 10]],
    )


def test_totals_with_and_without_standard_deviations():
    expected = [[1.109764, 1.284457, 0.57735], [-2.308264, -1.861807, -1.1547], [1.1985, 0.57735]]
    close(advantages(mode="mean_std"), expected)
    step_z = [[0.532414, 0.707107, 0], [-1.153563, -0.707107, 0], [0.621149, 0]]
    close([a - e for a, e in zip(advantages(mode="mean_std"), advantages(mode="mean_std", w=0.0))], step_z)
    close(advantages(mode="mean_std", w=0.0), [[0.57735] * 3, [-1.1547] * 3, [0.57735] * 2])
    episode_part = [3.333333, -6.666667, 3.333333]
    step_part = [[2.85, 4.75, 0], [-6.175, -4.75, 0], [3.325, 0]]
    close(advantages(mode="mean"), [e + np.array(s) for e, s in zip(episode_part, step_part)])


@pytest.mark.parametrize(("mode", "estimate"), [("mean", group_mean), ("mean_std", group_std(ddof=1))])
def test_without_the_step_part_it_is_grpo(mode, estimate):
    close(advantages(mode=mode, w=0.0), [item.advantage_K for item in per_group(estimate)([GROUP])])


def test_equal_returns_from_a_state_give_exactly_nothing():
    same = Group(make_task(), tuple(episode(i, ["s0"], 1.0) for i in range(3)))
    assert all((a == 0).all() for a in advantages(same))


def test_other_tasks_and_failed_episodes_are_never_compared():
    lost = replace(
        GROUP, trajectories=(*GROUP.trajectories, episode(3, ["s0"], 99.0, status=Status.ENV_FAILED))
    )
    close(advantages(lost), advantages())
    both = gigpo()([GROUP, Group(make_task("other"), (episode(0, ["s0"], 5.0),))])
    close([item.advantage_K for item in both[:3]], advantages())
    assert both[3].advantage_K == 0  # alone in its group


def test_similar_states_may_be_merged():
    texts = [
        "You arrive at shelf 1. On it is a mug 1.",
        "You arrive at shelf 1. On it is a mug 2.",
        "nothing here",
    ]
    steps = [[replace(make_step(0), anchor=text)] for text in texts]
    assert [int(ids[0]) for ids in anchor_ids(steps, similarity=0.95)] == [0, 0, 1]
    assert [int(ids[0]) for ids in anchor_ids(steps, similarity=0.0)] == [0, 1, 2]


def test_episode_statistics_over_steps_as_in_the_authors_code():
    """Returns 10, 0, 10 of 3, 3 and 2 steps: the mean is 6.667 over trajectories, 6.25 over steps."""
    return_G, count_G = np.array(RETURNS), np.array([3, 3, 2])
    close([episode_advantages(return_G, group_mean)], [return_G - 20 / 3])
    close([episode_advantages(return_G, group_mean, count_G)], [return_G - 6.25])
    step_part = [[2.85, 4.75, 0], [-6.175, -4.75, 0], [3.325, 0]]
    expected = [r - 6.25 + np.array(s) for r, s in zip(RETURNS, step_part)]
    close(advantages(mode="mean", episode_unit="steps"), expected)
    std = np.repeat(return_G, count_G).std(ddof=1) + 1e-6
    close(advantages(mode="mean_std", w=0.0, episode_unit="steps")[2:], [np.full(2, (10 - 6.25) / std)])


def test_an_episode_without_a_step_does_not_count_over_steps():
    with_empty = Group(make_task(), (*GROUP.trajectories, episode(3, [], 0.0)))
    close(
        advantages(with_empty, mode="mean", episode_unit="steps")[:3],
        advantages(mode="mean", episode_unit="steps"),
    )


@pytest.mark.parametrize(("singleton", "expected"), [("zero", [[0, 0]]), ("raw", [[5, 5]]), ("drop", [])])
def test_a_group_of_one(singleton, expected):
    one = Group(make_task(), (episode(0, ["s0", "s1"], 5.0),))
    close(advantages(one, singleton=singleton), expected)
    assert len(advantages(GROUP, singleton=singleton)) == 3


def test_what_is_logged():
    out = credit_metrics(gigpo(mode="mean")([GROUP]))
    assert out["gigpo/states"] == 5 / 8
    assert out["gigpo/shared_frac"] == 5 / 8  # s0 three times, s1 twice
    assert out["gigpo/largest_state"] == 3
    assert out["gigpo/episode_abs"] == pytest.approx(40 / 9)
    assert out["gigpo/step_abs"] == pytest.approx((2.85 + 4.75 + 6.175 + 4.75 + 3.325) / 8)


def test_an_episode_without_a_step_is_kept_and_no_group_gives_nothing():
    assert advantages(Group(make_task(), (episode(0, [], 0.0), *GROUP.trajectories)))[0].shape == (0,)
    assert advantages(Group(make_task(), (episode(0, [], 0.0),)))[0].shape == (0,)
    assert gigpo()([]) == gigpo()([Group(make_task(), ())]) == []


def test_an_unknown_singleton_policy_is_refused():
    with pytest.raises(ConfigError, match="known policies: zero, raw, drop"):
        gigpo(singleton="keep")


@pytest.mark.parametrize("wrong", [{"gamma": 1.1}, {"w": -1.0}, {"similarity": 2.0}])
def test_bad_options_are_refused(wrong):
    with pytest.raises(ConfigError, match="expected gamma and similarity"):
        gigpo(**wrong)
