"""REINFORCE and REINFORCE++ at hand-computed values."""

from dataclasses import replace

import numpy as np
import pytest

from jaxagent.credit.batch import (
    constant,
    domain,
    reinforce,
    reinforce_pp,
    reinforce_pp_tokens,
    token_returns,
    whiten,
)
from jaxagent.errors import ConfigError, RolloutError
from jaxagent.rewards.step_rewards import environment_rewards
from jaxagent.types import Group, Segment, Status
from tests.made_episodes import make_group, make_step, make_task, make_trajectory


def scalars(items):
    return [float(item.advantage_K[0]) for item in items]


def test_reinforce():
    group = make_group([1.0, 0.0])
    assert scalars(reinforce(baseline=constant(0.5))([group])) == [0.5, -0.5]
    assert scalars(reinforce(baseline=constant(0.0))([group])) == [1.0, 0.0]
    assert scalars(reinforce()([group, make_group([1.0, 1.0])])) == [0.25, -0.75, 0.25, 0.25]
    assert scalars(reinforce(baseline=constant(0.0))([make_group([0.7])])) == pytest.approx(
        [0.7]
    )  # a group of 1
    assert reinforce()([]) == []


def test_reinforce_with_the_rewards_of_steps():
    """r = 1, 0, 2, gamma .5: returns 1.5, 1, 2; b .5. With R = 2 at the end: .5, 1, 2 - .5."""
    steps = [replace(make_step(k), reward=r) for k, r in enumerate((1.0, 0.0, 2.0))]
    group = Group(make_task(), (make_trajectory(2.0, steps=steps),))
    paid = reinforce(baseline=constant(0.5), gamma=0.5, rewards=environment_rewards)([group])
    assert paid[0].advantage_K.tolist() == [1.0, 0.5, 1.5]
    graded = Group(group.task, (make_trajectory(9.0, steps=steps), make_trajectory(9.0, steps=steps[:1])))
    mean = reinforce(rewards=environment_rewards)([graded])  # of 3 and 1, whatever the outcomes are
    assert [item.advantage_K.tolist() for item in mean] == [[1.0, 0.0, 0.0], [-1.0]]
    outcome = reinforce(baseline=constant(0.5), gamma=0.5)([group])
    assert outcome[0].advantage_K.tolist() == [0.0, 0.5, 1.5]
    with pytest.raises(ConfigError, match=r"gamma=1\.5"):
        reinforce(gamma=1.5)


def test_reinforce_reads_survivors_only():
    group = make_group([1.0, 0.0])
    lost = make_trajectory(99.0, status=Status.ENV_FAILED)
    assert scalars(reinforce()([Group(group.task, (lost, *group.trajectories))])) == [0.5, -0.5]


@pytest.mark.parametrize("group_baseline", [False, True])
def test_reinforce_pp_weighs_by_tokens(group_baseline):
    task = make_task()
    short = make_trajectory(1.0, steps=[make_step(0, tokens=2)])
    long = make_trajectory(0.0, steps=[make_step(0, tokens=3), make_step(1, tokens=1)])
    out = reinforce_pp(group_baseline=group_baseline)([Group(task, (short, long))])
    assert scalars(out) == pytest.approx([1.290994, -0.645497], abs=1e-6)
    if not group_baseline:  # mean .333333 and variance .266667 of the 6 tokens: the returns again
        assert np.array(scalars(out)) * np.sqrt(0.266667) + 0.333333 == pytest.approx([1, 0], abs=1e-5)
    assert out[1].advantage_K.shape == (2,)


def test_reinforce_pp_degenerate_batches():
    assert scalars(reinforce_pp()([make_group([0.7])])) == [0.0]
    assert scalars(reinforce_pp()([make_group([0.7, 0.7])])) == [0.0, 0.0]
    assert reinforce_pp()([]) == []
    assert whiten(np.array([3.0]), np.array([1])).tolist() == [0.0]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([1, 0, 0, 0], [1.732051, -0.57735, -0.57735, -0.57735]), ([5, -5, 0, 0], [1.414214, -1.414214, 0, 0])],
)
def test_whitening_of_many_tokens_is_that_of_the_population(rewards, expected):
    """Two domains, each with its own scale; Bessel's correction vanishes over a million tokens."""
    assert whiten(np.array(rewards, float), np.full(4, 10**6)) == pytest.approx(expected, abs=2e-6)


def test_each_domain_is_whitened_by_itself():
    def task(name):
        return replace(make_task(name), meta={"domain": name})

    small = [make_trajectory(r, task=task("a"), steps=[make_step(0, tokens=50)]) for r in (1, 0, 0, 0)]
    large = [make_trajectory(r, task=task("b"), steps=[make_step(0, tokens=50)]) for r in (500, -500, 0, 0)]
    groups = [Group(task("a"), tuple(small)), Group(task("b"), tuple(large))]
    apart = scalars(reinforce_pp(scope=domain)(groups))
    alone = scalars(reinforce_pp()(groups[:1])) + scalars(reinforce_pp()(groups[1:]))
    assert apart == pytest.approx(alone)
    assert max(np.abs(scalars(reinforce_pp()(groups))[:4])) < 0.01  # together the small domain vanishes
    assert domain(make_task("x")) == "world"


# --- REINFORCE++ with a return a token: three sampled tokens, an observation between them ---------------------

MASK = np.array([False, True, True, False, True])
OLD, REFERENCE = np.array([0, -1.0, -1.0, -9.0, -1.0]), np.array([0, -1.1, -0.95, -2.0, -1.2])


def scored(reward=1.0, **changes):
    """Differences from the reference .1, -.05, .2; steps 0, 0, 1."""
    streams = {"old": OLD.astype(np.float32), "reference": REFERENCE.astype(np.float32)}
    segment = Segment(np.arange(5), MASK, np.array([-1, 0, 0, -1, 1]), streams)
    return replace(make_trajectory(reward, steps=["ok", "ok"]), segments=(segment,), **changes)


def test_kl_in_the_reward_of_every_token():
    assert token_returns(scored(), gamma=1.0, kl_coef=0.1) == pytest.approx([0.975, 0.985, 0.98], abs=1e-6)
    assert token_returns(scored(), gamma=0.5, kl_coef=0.0) == pytest.approx([0.25, 0.5, 1.0])
    assert token_returns(scored(masked=True), gamma=1.0, kl_coef=0.1).size == 0


def test_advantages_of_tokens_are_whitened_and_lie_on_their_tokens():
    item, other = reinforce_pp_tokens(kl_coef=0.1)([Group(make_task(), (scored(), scored(0.0)))])
    x = np.array([0.975, 0.985, 0.98, -0.025, -0.015, -0.02])
    expected = (x - x.mean()) / x.std(ddof=1)
    np.testing.assert_allclose(item.advantage_T[0], [0, *expected[:2], 0, expected[2]], atol=1e-5)
    np.testing.assert_allclose(other.advantage_T[0][MASK], expected[3:], atol=1e-5)
    np.testing.assert_allclose(item.advantage_K, [expected[:2].mean(), expected[2]], atol=1e-5)


def test_without_kl_and_discount_tokens_have_the_advantage_of_their_trajectory():
    groups = [Group(make_task(), (scored(1.0), scored(0.0)))]
    for fine, coarse in zip(reinforce_pp_tokens()(groups), reinforce_pp()(groups)):
        np.testing.assert_allclose(fine.advantage_K, coarse.advantage_K, rtol=1e-6)


def test_masked_trajectories_are_in_no_moment_of_the_tokens():
    """Their return stays in the group's baseline: .5 and -.5 about it, whitened over the other's tokens alone."""
    groups = [Group(make_task(), (scored(1.0), scored(0.0, masked=True), scored(0.25)))]
    first, _, third = reinforce_pp(group_baseline=True)(groups)
    x = np.repeat([1 - 1.25 / 3, 0.25 - 1.25 / 3], 3)
    expected = (x - x.mean()) / x.std(ddof=1)
    assert [first.advantage_K[0], third.advantage_K[0]] == pytest.approx(
        [expected[0], expected[-1]], abs=1e-6
    )


def test_missing_streams_and_bad_constants_are_named():
    with pytest.raises(RolloutError, match=r"stream\(s\) old, reference"):
        reinforce_pp_tokens(kl_coef=0.1)([make_group([1.0, 0.0])])
    with pytest.raises(ConfigError, match="gamma=2"):
        reinforce_pp_tokens(gamma=2.0)
