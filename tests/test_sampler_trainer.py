"""Decoder and trainer give the tokens of an episode the same log-probs: each family, dtype and temperature."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.model.spec import ModelSpec
from jaxagent.model.transformer import create
from tests.decode.engines import SPEC
from tests.learners import TURNS, episodes, logprobs, make_engine, make_learner

MOE = ModelSpec(
    family="qwen3_moe", vocab=300, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, mlp=16, qk_norm=True,
    experts=4, experts_per_token=2, norm_topk=True, init_std=0.25,
)  # fmt: skip
# Largest difference over all sampled tokens, in nats; never loosened.
EXACT, HALF = 2e-5, 0.03


@pytest.mark.parametrize(
    ("spec", "dtype", "temperature", "tolerance"),
    [
        (SPEC, jnp.float32, 0.6, EXACT),
        (MOE, jnp.float32, 1.0, EXACT),
        (replace(SPEC, init_std=0.1), jnp.bfloat16, 1.0, HALF),
    ],
    ids=["temperature", "moe", "bf16"],
)
def test_log_probs_of_an_episode(spec, dtype, temperature, tolerance):
    graphdef, params = create(spec, seed=3, dtype=dtype)
    # Trained norms are not 1: what a decoder rounds and a trainer does not would show.
    params["final_norm"] = params["final_norm"].replace(1.0 + 0.3 * jnp.sin(jnp.arange(spec.width) * 1.7))
    segments = episodes(make_engine(graphdef, params, spec, dtype=dtype), temperature=temperature)
    learner = make_learner(graphdef, params, temperature=temperature)
    worst = 0.0
    for segment, scored_T in zip(segments, logprobs(learner, segments), strict=True):
        assert segment.mask_T.sum() == sum(sampled for _, sampled in TURNS)
        assert segment.logprobs["behaviour"][segment.mask_T].max() < -0.1
        worst = max(worst, np.abs(scored_T - segment.logprobs["behaviour"])[segment.mask_T].max())
    assert worst < tolerance
