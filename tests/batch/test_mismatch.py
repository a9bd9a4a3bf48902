"""Weights for the difference between sampler and trainer: the numbers of the specification, segments, denominators."""

from dataclasses import replace

import numpy as np
import pytest

from jaxagent.batch import mismatch
from jaxagent.batch.targets import seq_mean_token_mean, token_mean
from jaxagent.errors import ConfigError, DataError
from jaxagent.types import Sample

OLD, BEHAVIOUR = [-1.0, -0.5, -2.0], [-1.2, -0.5, -3.2]  # rho 1.221403, 1, 3.320117; product 4.0552


def sample(old=OLD, behaviour=BEHAVIOUR, *, trajectory=0, trained=None):
    """Token 0 is a prompt, the rest are sampled; `trained` says which of those the policy term includes."""
    include_T = np.array([0, *([1] * len(old) if trained is None else trained)], np.float32)
    streams = {"old": old, "behaviour": behaviour}
    return Sample(
        trajectory=trajectory,
        ids_T=np.arange(len(old) + 1),
        step_T=np.zeros(len(old) + 1, np.int32),
        advantage_T=np.ones(len(old) + 1, np.float32),
        include={"pg": include_T},
        logprobs={name: np.array([0, *values], np.float32) for name, values in streams.items()},
    )


def weights(*samples, weigh, **options):
    made = mismatch.weighted(samples, weigh, **options)
    return [s.logprobs["mismatch"][1:].tolist() for s in made]


@pytest.mark.parametrize(
    ("weigh", "expected"),
    [
        (mismatch.token_trunc(2.0), [1.221403, 1.0, 2.0]),
        (mismatch.token_mask(0.5, 2.0), [1.221403, 1.0, 0.0]),
        (mismatch.seq_trunc(2.0), [2.0] * 3),
        (mismatch.seq_trunc(5.0), [1.221403 * 3.320117] * 3),
        (mismatch.seq_mask(0.5, 2.0), [0.0] * 3),
        (mismatch.seq_mask(0.5, 5.0), [1.0] * 3),
        (mismatch.geo_mask(0.5, 2.0), [1.0] * 3),  # geometric mean 1.594670
        (mismatch.geo_mask(0.5, 1.594), [0.0] * 3),
        (mismatch.geo_mask(0.5, 1.595), [1.0] * 3),
    ],
)
def test_rules(weigh, expected):
    (got,) = weights(sample(), weigh=weigh)
    assert got == pytest.approx(expected, abs=1e-6)


def test_normalised_weights_have_mean_one_over_all_trained_tokens():
    """TIS 1.2214, 1, 2 and one token of weight 1: mean 1.30535."""
    first, second = weights(
        sample(), sample([-1.0], [-1.0], trajectory=1), weigh=mismatch.token_trunc(2.0), normalise=True
    )
    assert first == pytest.approx([0.935690, 0.766078, 1.532156], abs=1e-6)
    assert second == pytest.approx([0.766078], abs=1e-6)
    nothing = weights(sample(), weigh=mismatch.seq_mask(0.5, 2.0), normalise=True)
    assert nothing == [[0.0, 0.0, 0.0]]  # everything is rejected: nothing to divide by


def test_a_trajectory_is_one_whatever_its_segments():
    first, second = sample(OLD[:2], BEHAVIOUR[:2]), sample(OLD[2:], BEHAVIOUR[2:])
    other = sample([0.0], [0.0], trajectory=1)
    assert weights(first, other, second, weigh=mismatch.seq_trunc(3.0)) == [[3.0, 3.0], [1.0], [3.0]]


def test_tokens_that_are_not_trained_have_no_say_and_weight_one():
    poisoned = sample([-1.0, 50.0, -2.0], [-1.2, -np.inf, -3.2], trained=[1, 0, 1])
    (got,) = weights(poisoned, weigh=mismatch.seq_trunc(100.0))
    assert got == pytest.approx([np.exp(1.4), 1.0, np.exp(1.4)], rel=1e-6)


def test_denominators_stay_those_of_all_tokens():
    """A rejected token leaves the sum, and is counted still: the aggregation never sees the weights."""
    plain = [sample(), sample([-1.0, -1.0], [-1.0, -1.0], trajectory=1)]
    made = mismatch.weighted(plain, mismatch.token_mask(0.5, 2.0))
    for aggregate, count in ((token_mean, 5.0), (seq_mean_token_mean, 2.0)):
        before, after = aggregate(plain, "pg"), aggregate(made, "pg")
        assert before[1] == after[1] == count
        np.testing.assert_array_equal(before[0][0], after[0][0])


def test_metrics():
    found = mismatch.importance_metrics([sample()], mismatch.token_trunc(2.0))
    assert found["is/ratio_mean"] == pytest.approx((1.221403 + 1 + 3.320117) / 3, abs=1e-6)
    assert found["is/ratio_max"] == pytest.approx(3.320117, abs=1e-6)
    assert found["is/ratio_min"] == 1.0
    assert found["is/trunc_frac"] == pytest.approx(1 / 3)
    assert found["is/k3_mismatch"] == pytest.approx(0.380507, abs=1e-6)
    assert found["is/ess"] == pytest.approx(4.221403**2 / (3 * (1.221403**2 + 1 + 4)), abs=1e-6)
    rejected = mismatch.importance_metrics([sample()], mismatch.seq_mask(0.5, 2.0))
    assert (rejected["is/trunc_frac"], rejected["is/ess"]) == (1.0, 0.0)
    assert mismatch.importance_metrics([], mismatch.token_trunc()) == {}
    assert mismatch.importance_metrics([sample(trained=[0, 0, 0])], mismatch.token_trunc()) == {}


def test_missing_streams_and_bad_bounds_are_named():
    bare = replace(sample(), logprobs={"behaviour": np.zeros(4, np.float32)})
    with pytest.raises(DataError, match=r"stream\(s\) old; give the stage needs="):
        mismatch.weighted([bare], mismatch.token_trunc())
    for call in (lambda: mismatch.token_mask(2.0, 0.5), lambda: mismatch.seq_trunc(0.0)):
        with pytest.raises(ConfigError, match="0 <= low < high"):
            call()
