"""V-trace at the specification's numbers, and what it is on policy."""

from dataclasses import replace

import numpy as np
import pytest

from jaxagent.credit.vtrace import VtraceRule, targets, vtrace
from jaxagent.errors import ConfigError
from jaxagent.rewards.step_rewards import discounted
from jaxagent.types import Group
from tests.credit.test_gae import close, ending, episode
from tests.made_episodes import make_task

REWARD, VALUE = np.array([0, 0, 1.0]), np.array([0.2, 0.4, 0.5])
RULE = VtraceRule(gamma=0.9)


def test_off_policy_targets_and_advantages():
    vs, advantage = targets(REWARD, VALUE, np.array([1.5, 0.5, 1.0]), RULE)
    close(vs, [0.585, 0.65, 1.0])
    close(advantage, [0.385, 0.25, 0.5])


def test_on_policy_it_gives_the_n_step_return():
    vs, advantage = targets(REWARD, VALUE, np.ones(3), RULE)
    close(vs, [0.81, 0.9, 1.0])
    close(vs, discounted(REWARD, 0.9))
    close(advantage, vs - VALUE)
    bootstrapped, _ = targets(REWARD, VALUE, np.ones(3), RULE, after=0.5)
    close(bootstrapped, discounted(np.array([0, 0, 1.45]), 0.9))


def sampled_by(trajectory, logs):
    """The trajectory with log pi - log mu of its sampled tokens."""
    (segment,) = trajectory.segments
    old_T = np.full(len(segment.ids_T), 5.0, np.float32)
    old_T[segment.mask_T] = logs
    return replace(trajectory, segments=(replace(segment, logprobs={**segment.logprobs, "old": old_T}),))


def test_over_tokens():
    logs = np.log([1.5, 0.5, 1.0])
    trajectory = sampled_by(episode([[0.2, 0.4], [0.5]], reward=1.0), logs)
    (item,) = vtrace(RULE)([Group(make_task(), (trajectory,))])
    (segment,) = item.trajectory.segments
    close(item.advantage_T[0][segment.mask_T], [0.385, 0.25, 0.5])
    close(segment.logprobs["return"][segment.mask_T], [0.585, 0.65, 1.0])
    assert not item.advantage_T[0][~segment.mask_T].any()
    assert item.measured["vtrace/rho_clip_frac"] == pytest.approx(1 / 3)
    assert item.measured["vtrace/c_mean"] == pytest.approx(2.5 / 3)


def test_over_steps_the_ratio_is_the_product_over_the_tokens():
    logs = np.log([3.0, 0.5, 0.25, 2.0, 1.0])
    trajectory = sampled_by(episode([[0.2, 9.0], [0.4, 9.0], [0.5]], reward=1.0), logs)
    (item,) = vtrace(replace(RULE, level="step"))([Group(make_task(), (trajectory,))])
    (segment,) = item.trajectory.segments
    close(item.advantage_T[0][segment.mask_T], [0.385, 0.385, 0.25, 0.25, 0.5])
    close(item.advantage_K, [0.385, 0.25, 0.5])


def test_a_cut_episode_goes_on_with_the_value_of_its_last_state():
    trajectory = ending(episode([[0.2, 0.4], [0.5]]), 0.5)
    (item,) = vtrace(replace(RULE, bootstrap=True))([Group(make_task(), (trajectory,))])
    (segment,) = item.trajectory.segments
    close(segment.logprobs["return"][segment.mask_T], 0.5 * 0.9 ** np.array([3, 2, 1]))


@pytest.mark.parametrize(
    "wrong", [{"c_bar": 2.0}, {"c_bar": 0.0}, {"gamma": -0.1}, {"rho_bar": 0.5}, {"lam": 1.5}]
)
def test_bad_rules_are_refused(wrong):
    with pytest.raises(ConfigError, match="vtrace: "):
        VtraceRule(**wrong)
