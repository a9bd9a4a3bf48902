"""A wider clip for flagged trajectories: the numbers of the clip, and one mean over all tokens."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.batch.boost import BOOST, boosted, jointly
from jaxagent.batch.targets import policy_samples, seq_mean_token_mean, token_mean
from jaxagent.errors import ConfigError
from jaxagent.learn.loss import Scores, Streams
from jaxagent.learn.terms import clipped_pg
from jaxagent.types import Credited
from tests.made_episodes import make_step, make_trajectory

NAMES = ("pg", "pg_boosted")


def credited(tokens, *, flag):
    made = make_trajectory(1.0, steps=[make_step(0, tokens=tokens)])
    flagged = replace(made, extra={BOOST: True} if flag else {})
    return Credited(flagged, np.ones(1, np.float32))


def clip_loss(high, ratio, advantage):
    one = jnp.ones((1, 1))
    streams = Streams(advantage * one, jnp.zeros((1, 1), int), jnp.zeros((1, 1), int), one, {"old": 0 * one})
    return float(clipped_pg(0.2, high)(Scores(jnp.log(ratio) * one, 0 * one), streams)[0][0, 0])


def test_the_clip_of_both_kinds():
    """rho 1.5, A 1: -1.28 and -1.5; rho 1.7: -1.6; A -1 is clipped by neither."""
    found = [clip_loss(0.28, 1.5, 1), clip_loss(0.6, 1.5, 1), clip_loss(0.6, 1.7, 1), clip_loss(0.6, 1.5, -1)]
    assert found == pytest.approx([-1.28, -1.5, -1.6, 1.5], abs=1e-6)
    assert clip_loss(0.28, 1.5, -1) == pytest.approx(1.5, abs=1e-6)


def test_flagged_trajectories_move_to_the_other_term():
    plain, guided = boosted(policy_samples)([credited(2, flag=False), credited(3, flag=True)])
    assert plain.include["pg"].tolist() == [0, 1, 1]
    assert plain.include["pg_boosted"].tolist() == [0, 0, 0]
    assert guided.include["pg"].tolist() == [0, 0, 0, 0]
    assert guided.include["pg_boosted"].tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("aggregate", [token_mean, seq_mean_token_mean])
def test_the_two_terms_are_one_mean(aggregate):
    samples = boosted(policy_samples)(
        [credited(2, flag=False), credited(3, flag=True), credited(4, flag=True)]
    )
    whole = policy_samples([credited(2, flag=False), credited(3, flag=True), credited(4, flag=True)])
    expected, count = aggregate(whole, "pg")
    parts = [jointly(aggregate, NAMES)(samples, name) for name in NAMES]
    assert [part[1] for part in parts] == [count, count]
    for one, other, together in zip(parts[0][0], parts[1][0], expected):
        np.testing.assert_allclose(one + other, together)
        assert not (one * other).any()


def test_without_a_flag_it_is_the_plain_term():
    samples = boosted(policy_samples)([credited(2, flag=False)])
    weights, count = jointly(token_mean, NAMES)(samples, "pg")
    assert weights[0].tolist() == [0, 1, 1]
    assert count == 2
    assert not jointly(token_mean, NAMES)(samples, "pg_boosted")[0][0].any()
    assert jointly(token_mean, NAMES)([], "pg") == ([], 0.0)


def test_one_term_alone_is_refused():
    with pytest.raises(ConfigError, match="two or more"):
        jointly(token_mean, ("pg",))
