"""Outcome rewards: the verdict, cut episodes, and episodes that have no return."""

from dataclasses import replace

import pytest

from jaxagent.errors import RolloutError
from jaxagent.rewards import outcome
from jaxagent.types import Evaluation, Status
from tests.made_episodes import make_trajectory


def test_fraction_and_success():
    half = make_trajectory(0.0, tests=(2, 4))
    assert outcome.test_fraction(half) == 0.5
    assert outcome.success(half) == 0.0
    assert outcome.success(make_trajectory(1.0)) == outcome.test_fraction(make_trajectory(1.0)) == 1.0


def test_all_tests_may_pass_without_success():
    """`success` is the environment's word; the fraction is not derived from it, nor it from the fraction."""
    odd = replace(make_trajectory(0.0), evaluation=Evaluation(False, 4, 4))
    assert (outcome.success(odd), outcome.test_fraction(odd)) == (0.0, 1.0)


@pytest.mark.parametrize("status", [Status.STEP_LIMIT, Status.LENGTH])
def test_cut_episodes_are_evaluated_unless_told_otherwise(status):
    cut = make_trajectory(0.0, tests=(3, 4), status=status)
    assert outcome.test_fraction(cut) == 0.75
    assert outcome.zero_on(outcome.test_fraction, {status})(cut) == 0.0
    other = {Status.STEP_LIMIT, Status.LENGTH} - {status}
    assert outcome.zero_on(outcome.test_fraction, other)(cut) == 0.75


@pytest.mark.parametrize("status", [Status.CANCELLED, Status.ENV_FAILED])
@pytest.mark.parametrize("reward", [outcome.success, outcome.zero_on(outcome.test_fraction, {Status.LENGTH})])
def test_dropped_episodes_have_no_return(status, reward):
    with pytest.raises(RolloutError, match="has no return"):
        reward(make_trajectory(1.0, status=status))


def test_nothing_is_imputed():
    with pytest.raises(RolloutError, match="without an evaluation"):
        outcome.success(replace(make_trajectory(), evaluation=None))
    with pytest.raises(RolloutError, match="0 tests"):
        outcome.test_fraction(replace(make_trajectory(), evaluation=Evaluation(False, 0, 0)))
