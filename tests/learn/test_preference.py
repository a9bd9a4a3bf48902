import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.errors import ConfigError
from jaxagent.learn.preference import dpo


def pair(chosen, rejected, beta=0.1):
    one = jnp.ones(1)
    return dpo(chosen * one, rejected * one, chosen_ref_P=-11 * one, rejected_ref_P=-11 * one, beta=beta)


def test_the_example():
    """beta .1, -10 and -12 beside references of -11: margin .2, loss .5981, coefficient -.0450 and its opposite."""
    loss_P, margin_P = pair(-10.0, -12.0)
    assert float(margin_P[0]) == pytest.approx(0.2, abs=1e-6)
    assert float(loss_P[0]) == pytest.approx(0.598139, abs=1e-6)
    both = jax.grad(lambda lps: pair(lps[0], lps[1])[0].sum())(jnp.array([-10.0, -12.0]))
    np.testing.assert_allclose(both, [-0.045017, 0.045017], atol=1e-6)


def test_at_the_start_the_loss_is_log_2():
    loss_P, margin_P = pair(-11.0, -11.0)
    assert float(loss_P[0]) == pytest.approx(0.693147, abs=1e-6)
    assert float(margin_P[0]) == 0


def test_far_apart_the_loss_stays_finite():
    loss_P, _ = pair(-1e5, 1e5)
    assert float(loss_P[0]) == pytest.approx(2e4, rel=1e-5)
    with pytest.raises(ConfigError, match="beta=0"):
        pair(-1.0, -2.0, beta=0.0)
