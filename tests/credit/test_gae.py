"""Advantages from values: the specification's numbers, and what each level must reduce to."""

from dataclasses import replace

import numpy as np
import pytest

from jaxagent.credit.gae import GaeRule, adaptive_lam, backward, gae, monte_carlo
from jaxagent.credit.group import returns
from jaxagent.errors import ConfigError, RolloutError
from jaxagent.rewards.returns import PARTS, STEP_REWARDS
from jaxagent.types import Action, Group, Segment, Status
from tests.made_episodes import make_step, make_task, make_trajectory

PLAIN = GaeRule(whiten=False)


def episode(turns, *, rewards=None, reward=0.0, garbage=9.0, **changes):
    """A trajectory whose step k samples tokens of the values `turns[k]`; two tokens of observation in between.

    What stands at tokens that nobody sampled is garbage that must never matter.
    """
    ids, step, value = [0], [-1], [garbage]
    for k, values in enumerate(turns):
        ids += [7] * len(values) + [3, 3]
        step += [k] * len(values) + [-1, -1]
        value += [*values, garbage, garbage]
    step_T = np.array(step, np.int32)
    streams = {name: np.zeros(len(step), np.float32) for name in ("behaviour", "old", "reference")}
    streams["value"] = np.array(value, np.float32)
    rewards = [0.0] * len(turns) if rewards is None else rewards
    steps = [
        replace(make_step(k, tokens=len(values)), reward=paid)
        for k, (values, paid) in enumerate(zip(turns, rewards, strict=True))
    ]
    trajectory = make_trajectory(reward, steps=steps)
    segment = Segment(np.array(ids, np.int32), step_T >= 0, step_T, streams)
    return replace(trajectory, segments=(segment,), **changes)


def credited(rule, *trajectories, credit=gae):
    """Per trajectory: (advantage, value target) of its sampled tokens."""
    out = []
    for item in credit(rule)([Group(make_task(), trajectories)]):
        masks = [segment.mask_T for segment in item.trajectory.segments]
        targets = [segment.logprobs["return"] for segment in item.trajectory.segments]
        for value_T, mask_T in zip((*item.advantage_T, *targets), (*masks, *masks)):
            assert not value_T[~mask_T].any()
        pair = [
            np.concatenate([v[m] for v, m in zip(values, masks)]) for values in (item.advantage_T, targets)
        ]
        out.append(tuple(pair))
    return out


def close(found, expected):
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("garbage", [0.0, 0.5, -40.0])
def test_tokens_skip_what_the_environment_wrote(garbage):
    trajectory = episode([[0.2, 0.4], [0.6]], reward=1.0, garbage=garbage)
    ((advantage, target),) = credited(replace(PLAIN, lam=0.9), trajectory)
    close(advantage, [0.704, 0.56, 0.4])
    close(target, [0.904, 0.96, 1.0])


def test_an_observation_that_counts_as_a_token_would_be_wrong():
    wrong = backward(np.array([0, 0, 0, 1.0]), np.array([0.2, 0.4, 0.5, 0.6]), gamma=1.0, lam=0.9)
    close(wrong, [0.6626, 0.514, 0.46, 0.4])


def test_with_lambda_and_gamma_one_the_advantage_is_the_return_minus_the_value():
    ((advantage, target),) = credited(PLAIN, episode([[0.2, 0.4], [0.6]], reward=1.0))
    close(advantage, [0.8, 0.6, 0.4])
    close(target, [1.0, 1.0, 1.0])


def test_whitening_is_over_the_tokens_of_the_batch_and_leaves_the_targets_alone():
    trajectory = episode([[0.2, 0.4], [0.6]], reward=1.0)
    rule = GaeRule(lam=0.9)
    ((advantage, target),) = credited(rule, trajectory)
    close(advantage, [0.982003, 0.035072, -1.017074])
    close(target, [0.904, 0.96, 1.0])
    both = credited(rule, trajectory, episode([[0.1] * 4], reward=0.5))
    every = np.concatenate([advantage for advantage, _ in both])
    assert abs(every.mean()) < 1e-6
    assert every.std(ddof=1) == pytest.approx(1, abs=1e-4)
    masked = credited(rule, trajectory, episode([[0.1] * 4], reward=0.5, masked=True))
    close(masked[0][0], [0.982003, 0.035072, -1.017074])  # what is not trained on says nothing


STEPS = replace(PLAIN, level="step", gamma=0.95, lam=0.9)


def test_steps_are_valued_before_their_first_token_and_their_tokens_share_an_advantage():
    trajectory = episode([[0.3, 8.0], [0.5], [0.8, 8.0, 8.0]], reward=1.0)
    ((advantage, target),) = credited(STEPS, trajectory)
    close(advantage, [0.543505, 0.543505, 0.431, 0.2, 0.2, 0.2])
    close(target, [0.843505, 0.843505, 0.931, 1.0, 1.0, 1.0])


def ending(trajectory, value):
    """The trajectory with `value` as that of the state after its last token."""
    last = trajectory.segments[-1]
    stream_T = np.zeros(len(last.ids_T), np.float32)
    stream_T[-1] = value
    segment = replace(last, logprobs={**last.logprobs, "bootstrap": stream_T})
    return replace(trajectory, segments=(*trajectory.segments[:-1], segment))


def test_a_budget_may_cut_an_episode_without_ending_its_future():
    trajectory = ending(episode([[0.3], [0.5], [0.8]], status=Status.STEP_LIMIT), 0.5)
    ((advantage, _),) = credited(replace(STEPS, bootstrap=True), trajectory)
    close(advantage, [0.159717, -0.017875, -0.325])
    ((without, _),) = credited(STEPS, trajectory)
    close(without[-1], -0.8)


BILEVEL = replace(PLAIN, level="bilevel", gamma_turn=0.95)


def test_both_levels():
    """Steps valued .3, .6 at their last tokens; inside, the last token carries the step's advantage."""
    trajectory = episode([[0.25, 0.3], [0.45, 0.55, 0.6]], reward=1.0)
    ((advantage, target),) = credited(BILEVEL, trajectory)
    close(advantage, [0.7, 0.65, 0.55, 0.45, 0.4])
    close(target, [0.95, 0.95, 1.0, 1.0, 1.0])


def test_a_step_without_a_reward_is_a_step():
    """Step boundaries come from step numbers: a reward of 0 in between changes no more than its own delta."""
    trajectory = episode([[0.3], [0.1], [0.6]], rewards=[0.5, 0.0, 0.5])
    ((advantage, _),) = credited(replace(BILEVEL, rewards="environment"), trajectory)
    steps = backward(np.array([0.5, 0, 0.5]), np.array([0.3, 0.1, 0.6]), gamma=0.95, lam=1.0)
    close(advantage, steps)


def test_lambda_grows_with_the_length():
    found = [adaptive_lam(length, alpha=0.05) for length in (100, 1000, 10_000, 10)]
    assert found == pytest.approx([0.8, 0.98, 0.998, 0.0])
    values = [[0.0] * 25]
    ((advantage, _),) = credited(replace(PLAIN, adaptive=0.05), episode(values, reward=1.0))
    close(advantage[-3:], [0.2**2, 0.2, 1.0])  # 25 tokens: lam .2


def test_the_critic_may_have_a_lambda_of_its_own():
    trajectory = episode([[0.2, 0.4], [0.6]], reward=1.0)
    ((advantage, target),) = credited(replace(PLAIN, lam=0.9, lam_critic=1.0), trajectory)
    close(advantage, [0.704, 0.56, 0.4])
    close(target, [1.0, 1.0, 1.0])


def test_values_are_held_within_their_range():
    trajectory = episode([[-3.0, 0.4], [7.0]], reward=0.5)
    ((advantage, _),) = credited(replace(PLAIN, value_range=(0.0, 1.0)), trajectory)
    close(advantage, [0.5, 0.1, -0.5])


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (replace(PLAIN, gamma=0.5), [0.25, 0.5, 1.0]),
        (replace(STEPS, gamma=0.5, lam=0.3), [0.5, 0.5, 1.0]),
        (replace(BILEVEL, gamma_turn=0.5), [0.5, 0.5, 1.0]),
    ],
)
def test_plain_returns_need_no_values(rule, expected):
    trajectory = episode([[0.2, 0.4], [0.6]], reward=1.0)
    segment = trajectory.segments[0]
    unscored = replace(
        trajectory, segments=(replace(segment, logprobs={"behaviour": segment.logprobs["behaviour"]}),)
    )
    ((advantage, target),) = credited(rule, unscored, credit=monte_carlo)
    close(advantage, 0)
    close(target, expected)


def test_rewards_by_step_and_penalties_where_they_were_earned():
    trajectory = episode([[0, 0], [0, 0]], rewards=[0.25, 0.5], reward=-0.1, extra={})
    illegal = replace(trajectory.steps[0], action=Action(error="none"))
    trajectory = replace(
        trajectory,
        steps=(illegal, trajectory.steps[1]),
        extra={PARTS: {"invalid_action": -0.1, "shaping": -0.1, "outcome": 0.0}, STEP_REWARDS: (-0.1, 0.0)},
    )
    ((paid, _),) = credited(replace(PLAIN, rewards="environment"), trajectory)
    close(paid, [0.65, 0.65, 0.5, 0.5])
    ((outcome, _),) = credited(PLAIN, trajectory)
    close(outcome, [-0.1, -0.1, 0, 0])


def test_kl_is_paid_token_by_token():
    trajectory = episode([[0, 0, 0]], reward=1.0)
    segment = trajectory.segments[0]
    old_T = np.zeros(len(segment.ids_T), np.float32)
    old_T[segment.mask_T] = [0.1, -0.05, 0.2]
    segment = replace(segment, logprobs={**segment.logprobs, "old": old_T})
    ((advantage, _),) = credited(replace(PLAIN, kl_coef=0.1), replace(trajectory, segments=(segment,)))
    close(advantage, [0.975, 0.985, 0.98])


def test_the_segments_of_an_episode_are_one_row_of_tokens():
    whole = episode([[0.2, 0.4], [0.6], [0.1]], reward=1.0)
    (segment,) = whole.segments
    cut = 5  # before the second step
    parts = [
        Segment(
            segment.ids_T[part],
            segment.mask_T[part],
            segment.step_T[part],
            {name: stream[part] for name, stream in segment.logprobs.items()},
        )
        for part in (slice(0, cut), slice(cut - 1, None))
    ]
    (one,), (other,) = (credited(GaeRule(lam=0.9), t) for t in (whole, replace(whole, segments=tuple(parts))))
    np.testing.assert_array_equal(one, other)


def test_the_mean_over_a_steps_tokens_stands_for_the_step():
    (item,) = gae(replace(PLAIN, lam=0.9))([Group(make_task(), (episode([[0.2, 0.4], [0.6]], reward=1.0),))])
    close(item.advantage_K, [(0.704 + 0.56) / 2, 0.4])


def test_failed_episodes_are_left_out_and_empty_ones_kept():
    lost = episode([[0.2]], reward=5.0, status=Status.ENV_FAILED)
    silent = replace(make_trajectory(0.0, steps=[]), segments=())
    items = gae(GaeRule())([Group(make_task(), (lost, silent, episode([[0.2, 0.1]], reward=1.0)))])
    assert [item.advantage_K.shape for item in items] == [(0,), (1,)]
    assert returns([item.trajectory for item in items]).tolist() == [0.0, 1.0]


def test_nothing_to_credit():
    assert gae(GaeRule())([]) == []


def test_a_missing_value_is_named():
    with pytest.raises(RolloutError, match="no token stream 'value'"):
        gae(GaeRule())([Group(make_task(), (make_trajectory(1.0),))])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"gamma": 1.2}, "gamma=1.2"),
        ({"lam_critic": -0.1}, "lam_critic=-0.1"),
        ({"adaptive": -1.0}, "adaptive=-1.0"),
        ({"value_range": (1.0, 0.0)}, "is empty"),
    ],
)
def test_bad_rules_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        GaeRule(**wrong)
