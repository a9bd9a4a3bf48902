"""GiGPO at the specification's numbers, and what it must reduce to."""

from dataclasses import replace

import numpy as np
import pytest

from jaxagent.credit.gigpo import anchor_ids, discounted, environment_rewards, gigpo, outcome_rewards
from jaxagent.credit.group import group_mean, group_std, per_group
from jaxagent.errors import ConfigError
from jaxagent.rewards.returns import PARTS
from jaxagent.types import Action, Group, Status
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


def test_penalties_stay_at_their_steps_and_the_environment_may_pay_by_step():
    steps = [make_step(0), replace(make_step(1), action=Action(error="none found")), make_step(2)]
    trajectory = replace(
        make_trajectory(0.0, steps=steps), reward=9.9, extra={PARTS: {"invalid_action": -0.1}}
    )
    assert outcome_rewards(trajectory) == pytest.approx([0, -0.1, 10])
    paid = replace(trajectory, steps=tuple(replace(s, reward=r) for s, r in zip(steps, [0.5, 0.0, 0.25])))
    assert environment_rewards(paid).tolist() == [0.5, 0.0, 0.25]


def test_an_episode_without_a_step_is_kept():
    assert advantages(Group(make_task(), (episode(0, [], 0.0), *GROUP.trajectories)))[0].shape == (0,)


@pytest.mark.parametrize("wrong", [{"gamma": 1.1}, {"w": -1.0}, {"similarity": 2.0}])
def test_bad_options_are_refused(wrong):
    with pytest.raises(ConfigError, match="expected gamma and similarity"):
        gigpo(**wrong)
