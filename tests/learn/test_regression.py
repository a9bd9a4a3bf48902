import numpy as np
import pytest

from jaxagent.errors import ConfigError
from jaxagent.learn.regression import advantage_regression
from tests.learn.test_terms import loss_and_gradient, streams


def test_the_example():
    """beta .5, log-ratio .2, A .4: (.1 - .4)^2 = .09; the gradient 2 (.5) (-.3). At l = A / beta nothing is left."""
    given = streams([0.4, 0.4], reference=[-1.0, -1.0])
    loss_S, gradient_S, metrics = loss_and_gradient(advantage_regression(0.5), [-0.8, -0.2], given)
    np.testing.assert_allclose(loss_S, [0.09, 0], atol=1e-6)
    np.testing.assert_allclose(gradient_S, [-0.3, 0], atol=1e-6)
    assert metrics["regression/log_ratio"] == pytest.approx(0.5)


def test_tokens_without_weight_reach_nothing():
    for bad in (np.nan, 1e9):
        given = streams([0.4, bad], weight=[1, 0], reference=[-1.0, bad])
        loss_S, gradient_S, metrics = loss_and_gradient(advantage_regression(0.5), [-0.8, bad], given)
        assert (loss_S[0], gradient_S[1]) == (pytest.approx(0.09), 0)
        assert metrics["regression/log_ratio"] == pytest.approx(0.2)
    with pytest.raises(ConfigError, match="beta=0"):
        advantage_regression(0.0)
