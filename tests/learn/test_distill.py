"""Distillation losses against finite sums over a small vocabulary: the direction of the KL, caps, metrics."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.errors import ConfigError
from jaxagent.learn import sums
from jaxagent.learn.distill import distillation
from tests.learn.test_terms import P, Q, expected_gradient, loss_and_gradient, streams

# KL(P || Q) and KL(Q || P), in P's logits.
REVERSE, FORWARD = ([0.346243, -0.220389, -0.125854], [0.3, -0.2, -0.1])


def kl_gradient(of):
    """By finite differences in the logits of P."""
    h, found = 1e-5, []
    for i in range(3):
        sides = []
        for sign in (1, -1):
            logits = np.log(P) + sign * h * np.eye(3)[i]
            sides.append(of(np.exp(logits) / np.exp(logits).sum()))
        found.append((sides[0] - sides[1]) / (2 * h))
    return found


def test_the_two_directions_are_what_they_are_called():
    assert kl_gradient(lambda p: (p * np.log(p / Q)).sum()) == pytest.approx(REVERSE, abs=1e-5)
    assert kl_gradient(lambda p: (Q * np.log(Q / p)).sum()) == pytest.approx(FORWARD, abs=1e-5)


@pytest.mark.parametrize(
    ("estimator", "gradient"),
    [("iw_k3", REVERSE), ("k2", REVERSE), ("k3+", REVERSE), ("pg", REVERSE), ("k3_direct", FORWARD)],
)
def test_expected_gradients_on_policy(estimator, gradient):
    np.testing.assert_allclose(expected_gradient(distillation(estimator), P), gradient, atol=1e-6)


@pytest.mark.parametrize("sampler", [np.array([0.4, 0.4, 0.2]), Q], ids=["stale", "the teacher itself"])
def test_the_weight_makes_any_sampler_exact(sampler):
    np.testing.assert_allclose(expected_gradient(distillation("iw_k3"), sampler), REVERSE, atol=1e-6)
    assert np.abs(expected_gradient(distillation("k2"), sampler) - REVERSE).max() > 0.01


def test_a_constant_weight_would_be_the_forward_kl():
    """rho must be differentiable in its numerator."""
    held = lambda p: (P * (np.log(p / Q) * 0 + Q / p - 1 + np.log(p / Q))).sum()  # noqa: E731
    assert kl_gradient(held) == pytest.approx(FORWARD, abs=1e-4)


def test_values_and_coefficients():
    # (p, teacher) = (.5, .2) and (.2, .5): l = +-.916291, k3 = .316291 and .583709
    lp, given = np.log([0.5, 0.2]), streams(np.ones(2), teacher=np.log([0.2, 0.5]), old=np.log([0.5, 0.2]))
    expected = {
        "iw_k3": ([0.316291, 0.583709], [0.916291, -0.916291]),
        "k3_direct": ([0.316291, 0.583709], [0.6, -1.5]),
        "k3+": ([0.316291, 0.583709], [0.916291, -0.916291]),
        "k2": ([0.419794, 0.419794], [0.916291, -0.916291]),
        "pg": ([0.916291, -0.916291], [0.916291, -0.916291]),
    }
    for estimator, (value, coefficient) in expected.items():
        loss, grad, metrics = loss_and_gradient(distillation(estimator), lp, given)
        np.testing.assert_allclose(loss, value, atol=1e-6, err_msg=estimator)
        np.testing.assert_allclose(grad, coefficient, atol=1e-6, err_msg=estimator)
        assert metrics["distill/below_teacher_frac"] == 0.5
        assert metrics["distill/k3"] == pytest.approx(0.45, abs=1e-6)
        assert metrics["distill/ess"] == pytest.approx(1.0)


def test_without_an_old_stream_the_weight_is_one():
    lp, teacher = np.log([0.5, 0.2]), np.log([0.2, 0.5])
    for estimator in ("iw_k3", "pg"):
        _, grad, metrics = loss_and_gradient(
            distillation(estimator), lp, streams(np.ones(2), teacher=teacher)
        )
        np.testing.assert_allclose(grad, [0.916291, -0.916291], atol=1e-6)
        assert metrics["distill/rho_mean"] == 1.0


def test_teacher_samples_have_unequal_weights():
    """rho = P / Q = 2.5, .6, .6667; drawn from Q, their effective share is .6397."""
    counts = (10 * Q).astype(int)
    lp, teacher = np.repeat(np.log(P), counts), np.repeat(np.log(Q), counts)
    loss, grad, metrics = loss_and_gradient(
        distillation(), lp, streams(np.ones(10), teacher=teacher, old=teacher)
    )
    rho, k3 = np.repeat([2.5, 0.6, 0.666667], counts), np.repeat([0.316291, 0.155841, 0.094535], counts)
    np.testing.assert_allclose(loss, rho * k3, atol=1e-5)
    np.testing.assert_allclose(grad, rho * np.repeat([0.916291, -0.510826, -0.405465], counts), atol=1e-5)
    assert metrics["distill/ess"] == pytest.approx(0.639659, abs=1e-6)
    assert metrics["distill/rho_max"] == pytest.approx(2.5)
    parts = [
        sums.effective_of(jnp.exp(lp - teacher)[at], jnp.ones(5, bool)) for at in (slice(5), slice(5, 10))
    ]
    assert sums.finish(sums.add({"e": parts[0]}, {"e": parts[1]}))["e"] == pytest.approx(0.639659, abs=1e-6)


def test_the_cap_cuts_the_gradient_of_large_weights():
    old = np.log([0.1, 0.4])
    given = streams(np.ones(2), teacher=np.log([0.2, 0.5]), old=old)
    _, free, _ = loss_and_gradient(distillation(), np.log([0.5, 0.2]), given)
    np.testing.assert_allclose(free, [5 * 0.916291, -0.5 * 0.916291], atol=1e-5)
    loss, capped, _ = loss_and_gradient(distillation(rho_max=2.0), np.log([0.5, 0.2]), given)
    assert loss[0] == pytest.approx(2 * 0.316291, abs=1e-5)
    np.testing.assert_allclose(capped, [2 * 0.6, -0.5 * 0.916291], atol=1e-5)


def test_tokens_without_weight_and_large_ratios_reach_nothing():
    for estimator in ("iw_k3", "k2", "k3_direct", "k3+", "pg"):
        results = []
        for bad in (0.0, np.nan, 1e9):
            given = streams([0, 0], weight=[1, 0], teacher=[-1.0, bad], old=[-0.5, bad])
            results.append(loss_and_gradient(distillation(estimator), [-0.7, bad], given))
        for loss, grad, metrics in results[1:]:
            assert (loss[0], grad[0], grad[1]) == (results[0][0][0], results[0][1][0], 0.0)
            assert metrics == results[0][2]
        loss, grad, _ = loss_and_gradient(
            distillation(estimator), [-300.0, 0.0], streams([0, 0], teacher=[0, -300])
        )
        assert np.isfinite(loss).all()
        assert np.isfinite(grad).all()


def test_wrong_settings_are_refused():
    with pytest.raises((ConfigError, TypeError), match="k9"):
        distillation("k9")
    with pytest.raises(ConfigError, match="above 0"):
        distillation(rho_max=0.0)
