from dataclasses import replace

import numpy as np
import pytest

from jaxagent.batch.masks import mask_metrics
from jaxagent.batch.pack import pack
from jaxagent.batch.targets import policy_samples, token_mean
from jaxagent.stage import Term
from jaxagent.types import Credited, Segment
from tests.made_episodes import make_step, make_trajectory


def episode(mask=(0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1)):
    """The 11 tokens of the specification's example: 3 of the prompt, 3 sampled, 3 of the environment, 2 sampled."""
    step_T = np.array([-1, -1, -1, 0, 0, 0, -1, -1, -1, 1, 1], np.int32)
    segment = Segment(step_T * 0, np.array(mask, bool), step_T, {"behaviour": np.zeros(11, np.float32)})
    made = make_trajectory(steps=[make_step(0, tokens=3), make_step(1, tokens=2)])
    return replace(made, segments=(segment,))


def credited(trajectory, value=1.0):
    return Credited(trajectory, np.full(2, value, np.float32))


def test_the_example():
    out = mask_metrics([episode()], policy_samples([credited(episode())]))
    assert out["mask/agent_frac"] == pytest.approx(5 / 11)
    assert out["mask/trained_equals_sampled"] == 1
    assert out["mask/obs_leak"] == 0
    assert out["mask/all_masked_frac"] == 0


def test_the_rows_of_logits_that_score_the_example():
    """5 trained tokens, 3 and 2 a step; token t is scored by the row of t - 1: rows 2, 3, 4, 8, 9 of the logits."""
    samples = policy_samples([credited(episode())])
    assert [int(samples[0].include["pg"][episode().segments[0].step_T == k].sum()) for k in (0, 1)] == [3, 2]
    (packed,) = pack(samples, {"pg": Term(None, token_mean)}, rows=1, length=12)
    assert packed.batch.count["pg"] == 5
    (used_S,) = np.nonzero(packed.batch.weight["pg"][0])
    assert (packed.batch.column_BS[0][used_S] - 1).tolist() == [2, 3, 4, 8, 9]


def test_a_marked_observation_leaks():
    broken = episode((0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1))
    out = mask_metrics([broken], policy_samples([credited(broken)]))
    assert out["mask/obs_leak"] == 1
    assert out["mask/trained_equals_sampled"] == 0


def test_a_term_on_observations_leaks_only_where_an_advantage_gets_there():
    (sample,) = policy_samples([credited(episode())], terms=("world_model",))
    everywhere = {"world_model": np.ones(11, np.float32)}
    world_model = replace(sample, include=everywhere)
    assert mask_metrics([episode()], [world_model])["mask/obs_leak"] == 0
    leaking = replace(world_model, advantage_T=np.ones(11, np.float32))
    assert mask_metrics([episode()], [leaking])["mask/obs_leak"] == 6


def test_a_trajectory_that_is_kept_out_is_counted():
    pair = [credited(episode()), credited(episode())]
    kept = policy_samples(pair, excluded=lambda trajectory: trajectory is pair[0].trajectory)
    assert mask_metrics([item.trajectory for item in pair], kept)["mask/all_masked_frac"] == 0.5
    assert mask_metrics([], []) == {}
