"""KL in the reward: k1 on action tokens only, summed over the episode."""

from dataclasses import replace

import numpy as np
import pytest

from jaxagent.errors import ConfigError, RolloutError
from jaxagent.rewards.kl import kl_in_reward, kl_token_rewards
from jaxagent.rewards.outcome import success
from jaxagent.rewards.returns import each
from jaxagent.types import Group, Segment
from tests.made_episodes import make_task, make_trajectory

f32 = np.float32
# three action tokens with log-ratios .1, -.05, .2; the observation token between them must not count
MASK = np.asarray([False, True, True, False, True])
OLD = np.asarray([0, -1.0, -1.0, -9.0, -1.0], f32)
REFERENCE = np.asarray([0, -1.1, -0.95, -2.0, -1.2], f32)


def episode(**streams):
    ids = np.arange(5, dtype=np.int32)
    segment = Segment(ids, MASK, np.where(MASK, 0, -1).astype(np.int32), streams)
    return replace(make_trajectory(1.0), segments=(segment,))


def test_token_rewards_and_returns():
    outcome = np.asarray([0, 0, 0, 0, 1.0], f32)
    reward_T = outcome + kl_token_rewards(OLD, REFERENCE, MASK, beta=0.1)
    assert reward_T[MASK] == pytest.approx([-0.01, 0.005, 0.98], abs=1e-6)
    assert reward_T[3] == 0.0
    assert reward_T[MASK][::-1].cumsum()[::-1] == pytest.approx([0.975, 0.985, 0.98], abs=1e-6)
    assert reward_T.dtype == f32


def test_return_of_an_episode():
    def reward(trajectory, beta=0.1):
        returns = kl_in_reward(each(success), beta=beta)
        return returns([Group(trajectory.task, (trajectory,))])[0].trajectories[0].reward

    assert reward(episode(old=OLD, reference=REFERENCE)) == pytest.approx(0.975, abs=1e-6)
    two = replace(episode(), segments=episode(old=OLD, reference=REFERENCE).segments * 2)
    assert reward(two) == pytest.approx(0.95, abs=1e-6)  # segments add up
    assert reward(episode(old=OLD, reference=REFERENCE), beta=0.0) == 1.0


def test_infinite_values_outside_the_mask_do_not_leak():
    poisoned = np.where(MASK, OLD, -np.inf).astype(f32)
    assert np.isfinite(kl_token_rewards(poisoned, REFERENCE, MASK, beta=0.1)).all()


def test_missing_streams_and_bad_coefficients():
    with pytest.raises(RolloutError, match=r"stream\(s\) reference; give the stage needs="):
        kl_in_reward(each(success), beta=0.1)([Group(make_task(), (episode(old=OLD),))])
    with pytest.raises(ConfigError, match=r"kl\.coef=-0\.1"):
        kl_in_reward(each(success), beta=-0.1)
