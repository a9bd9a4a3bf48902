"""One token from logits: the distribution drawn from, its log-probs, the filters' numbers, the random streams."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.decode.sampling import Rule, sample, stream_keys

DRAWS = 20_000
drawn = jax.jit(sample)


def rule(rows, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    def full(value, dtype):
        return jnp.broadcast_to(jnp.asarray(value, dtype), (rows,))

    return Rule(
        full(temperature, jnp.float32),
        full(top_k, jnp.int32),
        full(top_p, jnp.float32),
        full(min_p, jnp.float32),
    )


def streams(rows, **words):
    names = np.zeros((rows, 5), np.uint32)
    names[:, 3] = np.arange(rows)
    for column, value in words.items():
        names[:, int(column[1:])] = value
    return stream_keys(jnp.asarray(names))


def draw(probs, rows, **options):
    """(tokens, log-probs) of `rows` independent draws from one distribution."""
    logits_V = jnp.log(jnp.asarray(probs, jnp.float32))
    logits_VB = jnp.broadcast_to(logits_V[:, None], (len(probs), rows))
    token_B, logprob_B = drawn(logits_VB, streams(rows), jnp.zeros(rows, jnp.int32), rule(rows, **options))
    return np.asarray(token_B), np.asarray(logprob_B)


FIVE = (0.5, 0.2, 0.15, 0.1, 0.05)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, FIVE),
        # explore.top_p: the token that crosses 0.8 is kept.
        ({"top_p": 0.8}, (0.588235, 0.235294, 0.176471, 0, 0)),
        ({"top_k": 2}, (0.714286, 0.285714, 0, 0, 0)),
        # top-p acts on the distribution that top-k has renormalised: .5/.85 = .588, .7/.85 = .823 >= .8.
        ({"top_k": 3, "top_p": 0.8}, (0.714286, 0.285714, 0, 0, 0)),
        ({"min_p": 0.25}, (0.588235, 0.235294, 0.176471, 0, 0)),
        ({"top_k": 4, "min_p": 0.35}, (0.714286, 0.285714, 0, 0, 0)),
        ({"top_k": 1}, (1, 0, 0, 0, 0)),
        ({"top_k": 99}, FIVE),
    ],
)
def test_frequencies_and_log_probs_are_those_of_the_filtered_distribution(options, expected):
    token_B, logprob_B = draw(FIVE, DRAWS, **options)
    frequency = np.bincount(token_B, minlength=5) / DRAWS
    # 4 standard deviations of a frequency near 0.5 over 20,000 draws are 0.014.
    np.testing.assert_allclose(frequency, expected, atol=0.014)
    assert set(np.flatnonzero(frequency)) == set(np.flatnonzero(expected))
    np.testing.assert_allclose(np.exp(logprob_B), np.asarray(expected)[token_B], rtol=1e-5)


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [
        (0.5, (0.866813, 0.11731, 0.015876)),
        (1.0, (0.665241, 0.244728, 0.090031)),
        (2.0, (0.50648, 0.307196, 0.186324)),
    ],
)
def test_temperature(temperature, expected):
    token_B, logprob_B = draw(np.exp([2.0, 1.0, 0.0]), DRAWS, temperature=temperature)
    np.testing.assert_allclose(np.bincount(token_B) / DRAWS, expected, atol=0.014)
    np.testing.assert_allclose(np.exp(logprob_B), np.asarray(expected)[token_B], rtol=1e-4)


def test_greedy_is_the_argmax_with_the_plain_softmax_log_prob_whatever_the_filters():
    token_B, logprob_B = draw(FIVE, 3, temperature=0.0, top_k=2, top_p=0.5, min_p=0.9)
    assert token_B.tolist() == [0, 0, 0]
    np.testing.assert_allclose(logprob_B, np.log(0.5), rtol=1e-5)


def reference(scaled_V, top_k, top_p, min_p):
    """Filtered, renormalised probabilities by a full sort, in float64."""
    kept = np.ones(len(scaled_V), bool)
    prob = np.exp(scaled_V - scaled_V.max())
    if top_k:
        kept &= scaled_V >= np.sort(scaled_V)[-top_k]
    if top_p < 1:
        order = np.argsort(-scaled_V)
        mass = np.where(kept, prob, 0)[order]
        before = (np.cumsum(mass) - mass) / mass.sum()
        kept[order[before >= top_p]] = False
    if min_p:
        kept &= prob >= min_p * prob.max()
    return np.where(kept, prob, 0) / prob[kept].sum()


def test_rows_with_different_rules_in_one_call_over_a_vocabulary_that_no_block_divides():
    rng = np.random.default_rng(0)
    vocab, rows = 1237, 64
    logits = rng.normal(size=(vocab, rows)).astype(np.float32) * 3
    temperature = rng.choice([0.6, 1.0, 1.7], rows).astype(np.float32)
    top_k = rng.choice([0, 1, 7, 900], rows)
    top_p = rng.choice([1.0, 0.95, 0.3], rows).astype(np.float32)
    min_p = rng.choice([0.0, 0.02], rows).astype(np.float32)
    token_B, logprob_B = drawn(
        jnp.asarray(logits), streams(rows), jnp.zeros(rows, jnp.int32),
        rule(rows, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p),
    )  # fmt: skip
    for row in range(rows):
        scaled = logits[:, row].astype(np.float64) / temperature[row]
        expected = reference(scaled, top_k[row], top_p[row], min_p[row])
        assert expected[token_B[row]] > 0
        np.testing.assert_allclose(logprob_B[row], np.log(expected[token_B[row]]), atol=2e-5)


def test_a_row_does_not_depend_on_its_company():
    rng = np.random.default_rng(1)
    logits = jnp.asarray(rng.normal(size=(300, 6)), jnp.float32)
    index_B = jnp.arange(6)
    alone = rule(6, top_p=0.9)
    token_B, logprob_B = drawn(logits, streams(6), index_B, alone)
    back = jnp.asarray([5, 3, 1])
    # Other neighbours, other rules beside it, another place in the batch.
    token_3, logprob_3 = drawn(
        logits[:, back],
        streams(6)[back],
        index_B[back],
        rule(3, top_p=0.9, min_p=jnp.asarray([0.0, 0.0, 0.0])),
    )
    assert token_3.tolist() == token_B[back].tolist()
    np.testing.assert_array_equal(logprob_3, logprob_B[back])


def test_every_word_of_the_name_and_the_token_index_change_the_draw():
    logits = jnp.zeros((50_000, 1))
    plain = rule(1)
    seen = {int(drawn(logits, streams(1), jnp.asarray([0]), plain)[0][0])}
    for word in ("w0", "w1", "w2", "w3", "w4"):
        seen.add(int(drawn(logits, streams(1, **{word: 7}), jnp.asarray([0]), plain)[0][0]))
    seen.add(int(drawn(logits, streams(1), jnp.asarray([1]), plain)[0][0]))
    assert len(seen) == 7


def test_rare_tokens_of_a_large_vocabulary_are_drawn_as_often_as_they_should():
    # 6,000 tokens of 1e-4 each against one of 0.4: both levels of the draw must be right.
    probs = np.full(6_001, 1e-4)
    probs[1_234] = 0.4
    token_B, _ = draw(probs, 4000)
    assert abs((token_B == 1_234).mean() - 0.4) < 0.031
    rest = token_B[token_B != 1_234]
    assert abs((rest < 3_000).mean() - 0.5) < 0.041
    assert len(np.unique(rest % 128)) == 128
