"""Tiny models and engines. Engines of one shape share their compiled programs through the compilation cache."""

import pytest

from jaxagent.compilations import Compilations
from jaxagent.decode.engine import Engine
from jaxagent.model.transformer import create
from tests.decode.engines import BUCKETS, SPEC


@pytest.fixture(scope="session")
def model():
    return create(SPEC, seed=3)


@pytest.fixture
def make_engine(model):
    """make(**overrides) -> Engine with weights of version 0."""

    def make(*, params=None, buckets=BUCKETS, slots=4, **options):
        engine = Engine(model[0], SPEC, slots=slots, buckets=buckets, tokens=8, **options)
        engine.load(model[1] if params is None else params, 0)
        return engine

    return make


@pytest.fixture(scope="session")
def meter():
    """Compilations of this process, by JAX's own events."""
    found = Compilations()
    yield found
    found.close()
