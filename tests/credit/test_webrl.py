from dataclasses import replace

import numpy as np
import pytest

from jaxagent.credit.webrl import blended, mean_logprob, perplexity_band
from jaxagent.errors import ConfigError
from jaxagent.types import Credited
from tests.made_episodes import make_trajectory


def test_between_one_step_and_the_whole_episode():
    """Values .4, .6 and a last reward of 1: .5 (.2) + .5 (.6) = .4. Values .4, .3 and none: .5 (-.1) + .5 (-.4)."""
    assert blended(np.array([0, 1.0]), np.array([0.4, 0.6])) == pytest.approx([0.4, 0.4])
    assert blended(np.zeros(2), np.array([0.4, 0.3]))[0] == pytest.approx(-0.25)
    rewards, values = np.array([0, 1.0]), np.array([0.4, 0.6])
    assert blended(rewards, values, lam=0.0) == pytest.approx(1 - values)
    assert blended(rewards, values, lam=1.0) == pytest.approx([0.2, 0.4])
    assert blended(np.zeros(0), np.zeros(0)).size == 0
    with pytest.raises(ConfigError, match="lam=2"):
        blended(rewards, values, lam=2.0)


def replayed(probability, success=True):
    """Every sampled token has this probability; the prompt's token has a stream of garbage."""
    made = make_trajectory(1.0, success=success, steps=["ok", "ok"])
    (segment,) = made.segments
    stream_T = np.where(segment.mask_T, np.log(probability), -99.0)
    segment = replace(segment, logprobs={"old": stream_T})
    return Credited(replace(made, segments=(segment,)), np.ones(2, np.float32))


def test_replay_keeps_what_is_neither_known_nor_out_of_reach():
    found = {p: bool(perplexity_band()([replayed(p)])) for p in (0.99, 0.8, 0.5, 0.3)}
    assert found == {0.99: False, 0.8: True, 0.5: True, 0.3: False}
    assert perplexity_band()([replayed(0.8, success=False)]) == []
    empty = make_trajectory(1.0, steps=[])
    assert mean_logprob(empty, "behaviour") is None
    with pytest.raises(ConfigError, match="0 < least < most"):
        perplexity_band(0.9, 0.5)
