"""The update: what may not change it, what it must refuse, and what a gradient must do."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxagent.learn.forward import Execution
from jaxagent.learn.step import make_score, make_update

from . import cases


def gradient(items, terms=None, *, execution=None, **shape):
    """(flat gradient, metrics) of one update by plain gradient descent."""
    terms = terms or cases.pg()
    optimizer, state = cases.sgd_state()
    before = cases.flat(state.params)
    update = make_update(cases.model()[0], terms, optimizer, execution=execution)
    state, metrics = update(state, cases.packed(items, terms, **shape))
    return before - cases.flat(state.params), metrics


def test_smoke():
    g, m = gradient(cases.samples())
    print(m)
    assert np.isfinite(g).all() and np.abs(g).max() > 0
