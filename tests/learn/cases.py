"""A tiny model and hand-made samples that the tests of this folder share."""

from functools import cache

import jax
import numpy as np
import optax

from jaxagent.batch.pack import pack
from jaxagent.batch.targets import seq_mean_token_mean
from jaxagent.learn.state import init_state
from jaxagent.learn.terms import clipped_pg
from jaxagent.model.spec import ModelSpec
from jaxagent.model.transformer import create
from jaxagent.stage import Term
from jaxagent.types import Sample

SPEC = ModelSpec("qwen3", vocab=40, width=16, layers=2, heads=2, kv_heads=1, head_dim=8, mlp=24, qk_norm=True)


@cache
def model():
    """(graphdef, params as numpy): copy before donating."""
    graphdef, params = create(SPEC, seed=0)
    return graphdef, jax.tree.map(np.asarray, params)


def params():
    return jax.tree.map(jax.numpy.array, model()[1])


def sample(index, length, *, seed=None, term="pg", include=None, **streams):
    """Prompt of 2 tokens, then turns of 3 action and 1 observation tokens."""
    rng = np.random.default_rng(index if seed is None else seed)
    place = np.arange(length) - 2
    mask = (place >= 0) & (place % 4 < 3)
    mask_T = mask.astype(np.float32) if include is None else np.asarray(include, np.float32)
    logprobs = {"old": rng.normal(-3.6, 0.2, length).astype(np.float32) * mask}
    return Sample(
        trajectory=index,
        ids_T=rng.integers(0, 40, length).astype(np.int32),
        step_T=np.where(mask, place // 4, -1).astype(np.int32),
        advantage_T=(rng.normal() * mask).astype(np.float32),
        include={term: mask_T},
        logprobs={**logprobs, **streams},
    )


def samples(lengths=(9, 5, 14, 7, 11, 6)):
    return [sample(i, length) for i, length in enumerate(lengths)]


def pg(**kw):
    return {"pg": Term(clipped_pg(0.2, 0.28, **kw), seq_mean_token_mean)}


def packed(items, terms, *, rows=4, length=16, scored=None):
    return [part.batch for part in pack(items, terms, rows=rows, length=length, scored=scored)]


def sgd_state(partition=None):
    """Plain gradient descent: parameter differences are gradients."""
    optimizer = optax.sgd(1.0)
    return optimizer, init_state(params(), optimizer, partition)


def flat(tree):
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(tree)])
