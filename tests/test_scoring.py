"""Token streams before credit: one pass for each set of parameters, and the value after a cut episode."""

from dataclasses import replace

import numpy as np
import pytest

from jaxagent.errors import ConfigError
from jaxagent.learn.forward import make_score
from jaxagent.model.critic import add_critic
from jaxagent.model.spec import CriticSpec
from jaxagent.scoring import TokenScores, add_streams
from jaxagent.types import Group, Segment, Status
from tests.learn import cases
from tests.learn.test_value import model
from tests.learners import make_learner
from tests.made_episodes import make_task, make_trajectory


def segment(length, seed):
    """Prompt of 3 tokens, then an action that reaches the end."""
    rng = np.random.default_rng(seed)
    step_T = np.where(np.arange(length) < 3, -1, 0).astype(np.int32)
    ids_T = rng.integers(0, 40, length).astype(np.int32)
    return Segment(ids_T, step_T >= 0, step_T, {"behaviour": np.zeros(length, np.float32)})


def group(*statuses):
    """One trajectory of two segments for each status."""
    return Group(
        make_task(),
        tuple(
            replace(make_trajectory(status=status), segments=(segment(7, 2 * i), segment(6 + i, 2 * i + 1)))
            for i, status in enumerate(statuses)
        ),
    )


GROUP = group(Status.DONE, Status.STEP_LIMIT, Status.LENGTH)


class Asked:
    """Scores every token with its place, and remembers what it was asked."""

    def __init__(self, valued=True):
        self.asked, self.valued = [], valued

    def __call__(self, segments, *, weights):
        self.asked.append((weights, [len(s.ids_T) for s in segments]))
        places = [np.arange(len(s.ids_T), dtype=np.float32) for s in segments]
        return [TokenScores(-p_T, p_T * 10 if self.valued else None) for p_T in places]


def test_streams_of_the_same_parameters_share_a_pass():
    score = Asked()
    (scored,) = add_streams([GROUP], ("old", "reference", "value"), score)
    assert [weights for weights, _ in score.asked] == ["current", "reference"]
    streams = scored.trajectories[1].segments[0].logprobs
    assert streams["old"][4] == streams["reference"][4] == -4
    assert streams["value"][4] == 40
    assert set(streams) == {"behaviour", "old", "reference", "value"}
    assert add_streams([GROUP], (), score) == [GROUP]
    assert len(score.asked) == 2


def test_only_what_a_budget_cut_has_a_value_after_its_end():
    score = Asked()
    (scored,) = add_streams([GROUP], ("value", "bootstrap"), score)
    assert score.asked == [("current", [7, 6, 7, 7 + 1, 7, 8 + 1])]
    after = [[s.logprobs["bootstrap"] for s in t.segments] for t in scored.trajectories]
    assert [[float(a[-1]) for a in of] for of in after] == [[0, 0], [0, 70], [0, 80]]
    assert not any(a[:-1].any() for of in after for a in of)
    assert all(len(s.logprobs["value"]) == len(s.ids_T) for t in scored.trajectories for s in t.segments)


def test_a_model_without_a_head_has_no_values():
    with pytest.raises(ConfigError, match="'value', but the model has no value head"):
        add_streams([GROUP], ("old", "value"), Asked(valued=False))


def test_the_learner_scores_log_probs_and_values_of_the_present_parameters():
    """The value after the last token is that of a token behind it, whichever it is."""
    graphdef, params = model()
    learner = make_learner(graphdef, params)
    (scored,) = learner.score([GROUP], "old", "value", "bootstrap")
    cut = scored.trajectories[1].segments[1]
    longer = Segment(
        np.append(cut.ids_T, np.int32(5)), np.append(cut.mask_T, True), np.append(cut.step_T, 0), {}
    )
    (alone,) = learner.token_scores([longer])
    np.testing.assert_allclose(cut.logprobs["value"], alone.value_T[:-1], atol=1e-6)
    np.testing.assert_allclose(cut.logprobs["old"], alone.logprob_T[:-1], atol=1e-6)
    np.testing.assert_allclose(cut.logprobs["bootstrap"][-1], alone.value_T[-1], atol=1e-6)
    assert np.abs(cut.logprobs["value"][3:]).min() > 0
    assert not cut.logprobs["value"][:3].any()


def test_an_adapterless_model_scores_the_same_with_and_without_a_head():
    graphdef, params = cases.model()[0], cases.params()
    headed = add_critic(graphdef, params, CriticSpec((4,)), seed=0)
    (batch,) = cases.packed(cases.samples(), cases.pg())
    one, other = make_score(graphdef)(params, batch), make_score(headed[0])(headed[1], batch)
    np.testing.assert_array_equal(one.logprob_BS, other.logprob_BS)
    np.testing.assert_array_equal(one.entropy_BS, other.entropy_BS)


def test_nothing_sampled_is_nothing_scored():
    silent = replace(segment(4, 0), mask_T=np.zeros(4, bool))
    learner = make_learner(cases.model()[0], cases.params())
    (scores,) = learner.token_scores([silent])
    assert scores.logprob_T.tolist() == [0, 0, 0, 0]


def test_entropies_are_fetched_for_those_who_ask():
    learner = make_learner(cases.model()[0], cases.params())
    (plain,) = learner.token_scores([segment(7, 0)])
    (asked,) = learner.token_scores([segment(7, 0)], distribution=True)
    assert plain.entropy_T is None
    assert asked.entropy_T[3:].min() > 0
    assert not asked.entropy_T[:3].any()
    np.testing.assert_array_equal(plain.logprob_T, asked.logprob_T)
