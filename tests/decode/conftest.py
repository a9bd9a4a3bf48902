"""Tiny models and engines. Engines of one shape share their compiled programs through the compilation
cache.
"""

import asyncio
from dataclasses import replace

import jax
import numpy as np
import pytest

from jaxagent.decode.buckets import Buckets
from jaxagent.decode.engine import Engine
from jaxagent.model.spec import ModelSpec
from jaxagent.model.transformer import create
from jaxagent.types import GenerateRequest, SampleKey, Sampling

SPEC = ModelSpec(
    family="qwen3",
    vocab=300,
    width=32,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    mlp=48,
    tied=True,
    qk_norm=True,
    init_std=0.25,
)
BUCKETS = Buckets(prefill=((2, 8),), decode=(4,), lengths=(96,))


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


def request(session, ids, *, rollout=0, step=0, task=1, **sampling):
    return GenerateRequest(
        session,
        np.asarray(ids, np.int32),
        SampleKey(seed=5, task=task, rollout=rollout, step=step),
        replace(Sampling(max_tokens=10), **sampling),
    )


def prompt(length, seed=0):
    return np.random.default_rng(seed).integers(0, SPEC.vocab, length).astype(np.int32)


def run(engine, *requests):
    """Completions of requests that are all in flight at once."""

    async def together():
        return await asyncio.gather(*(engine(one) for one in requests))

    return asyncio.run(together())


class CompileMeter:
    """Compilations of this process, by JAX's own events."""

    def __init__(self):
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._on)

    def _on(self, name, seconds, **_):
        self.count += name.endswith("backend_compile_duration")


@pytest.fixture(scope="session")
def meter():
    return CompileMeter()
