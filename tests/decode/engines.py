"""Sizes of the tiny engines, and what they are asked."""

import asyncio
from dataclasses import replace

import numpy as np

from jaxagent.decode.buckets import Buckets
from jaxagent.types import GenerateRequest, SampleKey, Sampling
from tests.small_models import DENSE

SPEC = replace(DENSE, vocab=300, init_std=0.25)
BUCKETS = Buckets(prefill=((2, 8),), decode=(4,), lengths=(96,))


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
