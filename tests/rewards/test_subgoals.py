"""Subgoals and potentials at hand-computed values."""

import numpy as np
import pytest

from jaxagent.errors import ConfigError
from jaxagent.rewards.subgoals import Subgoal, potential_rewards, shaped, subgoal_rewards, subgoals
from jaxagent.types import ExecStatus
from tests.made_episodes import make_step, make_trajectory

GOALS = [Subgoal(letter, message=letter) for letter in "abcde"]


def episode(*texts, status=ExecStatus.OK):
    return make_trajectory(
        0.0, steps=[make_step(k, text=text, status=status) for k, text in enumerate(texts)]
    )


def test_each_pays_once_at_its_first_step_until_the_cap():
    """Three of five at .1 with cap .3; the repeated one pays nothing."""
    found = subgoal_rewards(episode("a", "a b", "c"), GOALS, cap=0.3)
    assert found == pytest.approx([0.1, 0.1, 0.1])
    assert subgoals(GOALS, cap=0.3)(episode("a b c d e")) == pytest.approx(0.3)
    assert subgoal_rewards(episode("a b c", "d"), GOALS, cap=0.25) == pytest.approx([0.25, 0.0])


def test_in_order_counts_only_what_follows_what_was_reached():
    assert subgoal_rewards(episode("b", "a", "b"), GOALS, cap=1.0, in_order=True) == pytest.approx(
        [0, 0.1, 0.1]
    )


def test_a_failed_step_reaches_nothing():
    assert subgoals(GOALS)(episode("a", status=ExecStatus.RUNTIME_ERROR)) == 0.0


def test_observation_and_message_must_both_match():
    both = [Subgoal("x", observation="^after$", message="go")]
    assert subgoals(both)(episode("go")) == pytest.approx(0.1)
    assert subgoals(both)(episode("stay")) == 0.0


@pytest.mark.parametrize("fields", [{}, {"observation": "("}])
def test_useless_patterns_are_refused(fields):
    with pytest.raises(ConfigError, match="subgoal 'x'"):
        Subgoal("x", **fields)


def test_potentials_telescope():
    reward = potential_rewards([0, 0.25, 0.25, 1], gamma=0.99)
    assert reward == pytest.approx([0.2475, -0.0025, 0.74])
    assert (reward * 0.99 ** np.arange(3)).sum() == pytest.approx(0.970299, abs=1e-6)


def test_shaping_is_worth_nothing_over_an_episode():
    potentials = {0: 0.5, 1: 0.7, 2: 0.2}
    reward_K = shaped(episode("a", "b", "c"), lambda trajectory, k: potentials[k], gamma=0.9)
    assert (reward_K * 0.9 ** np.arange(3)).sum() == pytest.approx(-0.5, abs=1e-6)
