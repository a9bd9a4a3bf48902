"""Internalisation by hand: weights, divisors, the gate, action tokens under the plain prompt."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.batch.internal import Internalise, internal_samples, token_weights
from jaxagent.batch.targets import policy_samples, token_mean
from jaxagent.learn.loss import Scores, Streams
from jaxagent.learn.terms import weighted_likelihood
from jaxagent.rollout.episode import PLAIN
from jaxagent.types import (
    Action,
    Credited,
    ExecStatus,
    Message,
    Prompt,
    Segment,
    Status,
    Step,
    Stop,
    Trajectory,
)
from tests.made_episodes import make_task
from tests.rollout.fake_policy import END, OPEN, CharRenderer

RENDERER = CharRenderer()


def decode(ids):
    return "".join(map(chr, ids))


PLAIN_PROMPT, TAUGHT = (Prompt((Message("user", text),)) for text in ("go", "lesson: go"))


def episode(*messages, opening=TAUGHT, parse=None):
    """One segment: the opening, then each message (END appended) and an answer of two characters."""
    parse = parse or (lambda text: Action(text.split(">")[1].split("<")[0] if "<" in text else text))
    ids, owner, steps = list(RENDERER.open(opening)), [], []
    owner = [-1] * len(ids)
    for k, text in enumerate(messages):
        said = [*map(ord, text), END]
        steps.append(
            Step(k, "", text, np.array(said, np.int32), np.zeros(len(said), np.float32), 0, Stop.STOP,
                 parse(text), ExecStatus.OK, "ok")
        )  # fmt: skip
        ids += [*said, ord("o"), ord("k"), OPEN]
        owner += [k] * len(said) + [-1] * 3
    step_T = np.array(owner, np.int32)
    segment = Segment(
        np.array(ids, np.int32), step_T >= 0, step_T, {"behaviour": -1.0 * (step_T >= 0).astype(np.float32)}
    )
    return Trajectory(
        "t", make_task(), 0, Status.DONE, opening, tuple(steps), (segment,), extra={PLAIN: PLAIN_PROMPT}
    )


def credited(*messages, advantages, **kwargs):
    return Credited(episode(*messages, **kwargs), np.array(advantages, np.float32))


RULES = Internalise(gate=lambda item: True)


def spell(sample, name="internal"):
    """The characters that the term trains."""
    return "".join(chr(i) for i, w in zip(sample.ids_T, sample.include[name]) if w > 0)


def test_weights_by_hand():
    """A .8 .8 .8 -.5 -.5 3 with action tokens 0 1 1 1 1 1: six one-token steps; the first has no action."""
    letters = ["a", "b", "c", "d", "e", "f"]
    item = credited(*letters, advantages=[0.8, 0.8, 0.8, -0.5, -0.5, 3.0])
    places = [None, *[slice(0, 1)] * 5]
    (segment,) = item.trajectory.segments
    weight_T = token_weights(item, segment, places, w_max=2.0)
    at = [int(np.flatnonzero(segment.step_T == k)[0]) for k in range(6)]
    assert weight_T[at].tolist() == pytest.approx([0.0, 0.8, 0.8, 0.0, 0.0, 2.0])
    assert weight_T.sum() == pytest.approx(3.6)


@pytest.mark.parametrize(("divisor", "expected"), [("kept", 1.186667), ("weight", 0.988889)])
def test_loss_by_hand(divisor, expected):
    """lp -1 -.5 -.2 -2 -2 -1.5 under the weights above, through the samples, the aggregation and the loss."""
    item = credited(
        *"abcdef",
        advantages=[0.8, 0.8, 0.8, -0.5, -0.5, 3.0],
        parse=lambda text: Action(error="no") if text == "a" else Action(f"{text}"),
    )
    rules = replace(RULES, divisor=divisor)
    (sample,), counts = internal_samples([item], rules, strength=1.0, renderer=RENDERER, decode=decode)
    lp = dict(zip("abcdef", [-1.0, -0.5, -0.2, -2.0, -2.0, -1.5]))
    # the end-of-turn belongs to a message that is all action; here only the letters are to count
    only_T = np.array([i > OPEN for i in sample.ids_T], np.float32)
    sample = replace(sample, include={"internal": sample.include["internal"] * only_T})
    (weight_T,), count = token_mean([sample], "internal")
    logprob_T = np.array([lp.get(chr(i), 0.0) for i in sample.ids_T], np.float32)
    scores = Scores(jnp.array([logprob_T]), jnp.zeros((1, len(logprob_T))))
    zeros = jnp.zeros((1, len(logprob_T)), jnp.int32)
    streams = Streams(jnp.array([sample.advantage_T]), zeros, zeros, jnp.array([weight_T]), {})
    loss_BS, _ = weighted_likelihood()(scores, streams)
    assert float((loss_BS[0] * weight_T).sum()) / count == pytest.approx(expected, abs=1e-6)
    assert counts == {
        "internal/episodes": 1.0,
        "internal/kept_tokens": 6.0,  # three letters, three ends of turn
        "internal/steps_without_span": 1.0,
    }


def test_a_closed_gate_gives_nothing():
    item = credited("ab", advantages=[1.0])
    closed = internal_samples(
        [item], Internalise(lambda item: False), strength=1.0, renderer=RENDERER, decode=decode
    )
    assert closed[0] == []
    assert closed[1]["internal/kept_tokens"] == 0.0


def test_action_tokens_under_the_plain_prompt():
    """Thoughts and tags have no weight, nor has the lesson a place; everything behind the opening is id for id."""
    item = credited("I see.<a>go<", "so <a>in<", advantages=[0.5, -1.0])
    (sample,), _ = internal_samples([item], RULES, strength=1.0, renderer=RENDERER, decode=decode)
    assert spell(sample) == "go"
    n = len(RENDERER.open(PLAIN_PROMPT))
    assert sample.ids_T[:n].tolist() == RENDERER.open(PLAIN_PROMPT)
    (own,) = item.trajectory.segments
    np.testing.assert_array_equal(sample.ids_T[n:], own.ids_T[len(RENDERER.open(TAUGHT)) :])
    np.testing.assert_array_equal(sample.step_T[n:], own.step_T[len(RENDERER.open(TAUGHT)) :])
    assert set(sample.logprobs) == {"behaviour"}
    assert len(sample.logprobs["behaviour"]) == len(sample.ids_T)


def test_a_step_whose_action_cannot_be_located_is_left_out():
    item = credited(
        "up || left", "<a>go<", advantages=[1.0, 1.0],
        parse=lambda text: Action("up left" if "|" in text else "go"),
    )  # fmt: skip
    (sample,), counts = internal_samples([item], RULES, strength=1.0, renderer=RENDERER, decode=decode)
    assert spell(sample) == "go"
    assert counts["internal/steps_without_span"] == 1.0


def test_strength_scales_the_loss_and_not_the_divisor():
    item = credited("ab", advantages=[0.5])
    for divisor in ("kept", "weight"):
        rules = replace(RULES, divisor=divisor)
        (full,), _ = internal_samples([item], rules, strength=1.0, renderer=RENDERER, decode=decode)
        (fifth,), _ = internal_samples([item], rules, strength=0.2, renderer=RENDERER, decode=decode)
        np.testing.assert_allclose(fifth.advantage_T, 0.2 * full.advantage_T)
        np.testing.assert_array_equal(fifth.include["internal"], full.include["internal"])


def test_samples_keep_the_number_of_their_trajectory():
    """A minibatch holds an episode's policy-gradient and internalisation samples together."""
    items = [credited("ab", advantages=[-1.0]), credited("ab", advantages=[1.0])]
    own = policy_samples(items)
    more, _ = internal_samples(items, RULES, strength=1.0, renderer=RENDERER, decode=decode)
    assert [s.trajectory for s in own] == [0, 1]
    assert [s.trajectory for s in more] == [1]
    assert "internal" not in own[1].include
    assert "pg" not in more[0].include
