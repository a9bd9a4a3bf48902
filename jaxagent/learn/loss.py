"""What a loss term is: a function of current scores and constant token streams, and the ratio most of them share.

A loss knows tokens, not algorithms: the step multiplies it by the term's weight stream, sums over everything
and divides by the term's global count. Tokens of weight 0 reach neither loss nor gradient nor metric: they
are masked before any exp, so nothing there can become inf * 0. The terms themselves are in terms.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxagent.learn.sums import Sums

Level = Literal["token", "turn", "trajectory", "turn_geo", "trajectory_geo"]
MAX_LOG_RATIO = 20.0  # exp(20) = 4.9e8: a ratio beyond it carries no information


class Scores(NamedTuple):
    """What the current parameters say about the scored tokens; differentiable, but for best_BS."""

    logprob_BS: Float[Array, "B S"]
    entropy_BS: Float[Array, "B S"]
    value_BS: Float[Array, "B S"] | None = None  # of the state before the token; None without a value head
    best_BS: Float[Array, "B S"] | None = None  # log-prob of the likeliest token


@dataclass(frozen=True)
class Streams:
    """Constants of a micro-batch. `logprobs` may hold "old", "behaviour", "reference", "teacher", "mismatch", "value",
    "return".

    turn_BS, trajectory_BS: row-local numbers below S. weight_BS: this term's weight; 0 excludes the token.
    """

    advantage_BS: Float[Array, "B S"]
    turn_BS: Int[Array, "B S"]
    trajectory_BS: Int[Array, "B S"]
    weight_BS: Float[Array, "B S"]
    logprobs: Mapping[str, Float[Array, "B S"]]

    @property
    def mask_BS(self) -> Bool[Array, "B S"]:
        return self.weight_BS != 0.0


Function = Callable[[Scores, Streams], tuple[Array, Sums]]


@dataclass(frozen=True)
class Loss:
    """fn: the formula. needs: log-prob streams that must be present. level: what shares one ratio; a whole
    turn or trajectory must then lie in one row. entropy: whether the entropy of the policy is read."""

    fn: Function
    needs: tuple[str, ...] = ()
    level: Level = "token"
    entropy: bool = False

    def __call__(self, scores: Scores, streams: Streams) -> tuple[Array, Sums]:
        """Values at weight 0 are set to 0 on the way in: they can reach neither loss, gradient nor metric."""

        def clean(value_BS: Array) -> Array:
            return jnp.where(streams.mask_BS, value_BS, 0.0)

        logprobs = {name: clean(value_BS) for name, value_BS in streams.logprobs.items()}
        streams = replace(streams, advantage_BS=clean(streams.advantage_BS), logprobs=logprobs)
        return self.fn(jax.tree.map(clean, scores), streams)


def log_ratio(scores: Scores, streams: Streams) -> Float[Array, "B S"]:
    """d = lp - old. Without an "old" stream old is the current policy: d = 0, rho = 1,
    with the gradient of lp, which is exact for a single on-policy step."""
    old_BS = streams.logprobs.get("old", jax.lax.stop_gradient(scores.logprob_BS))
    return scores.logprob_BS - old_BS


def group_sum(value_BS: Float[Array, "B S"], group_BS: Int[Array, "B S"]) -> Float[Array, "B S"]:
    """Sum over the tokens of the same group of the row, handed back to each of its tokens."""
    row_B1 = jnp.arange(value_BS.shape[0])[:, None]
    sum_BS = jnp.zeros_like(value_BS).at[row_B1, group_BS].add(value_BS)
    return jnp.take_along_axis(sum_BS, group_BS, axis=1)


def ratio(scores: Scores, streams: Streams, level: Level) -> Float[Array, "B S"]:
    """rho of each token at `level`.

    token: exp(d_t).   turn, trajectory: exp(sum of d), the same number on every token of the group; with
    weights that average tokens within the group, the group counts once.   *_geo: exp(mean of d) in GSPO's
    token form, value s = exp(mean d) and gradient s * grad lp_t, so that weights 1/n spread it evenly.
    """
    d_BS = log_ratio(scores, streams)
    if level == "token":
        return jnp.exp(bounded(d_BS))
    group_BS = streams.turn_BS if level.startswith("turn") else streams.trajectory_BS
    sum_BS = group_sum(d_BS, group_BS)
    if not level.endswith("_geo"):
        return jnp.exp(bounded(sum_BS))
    count_BS = group_sum(streams.mask_BS.astype(jnp.float32), group_BS)
    s_BS = jax.lax.stop_gradient(jnp.exp(jnp.minimum(sum_BS / jnp.maximum(count_BS, 1.0), 10.0)))
    return s_BS * jnp.exp(d_BS - jax.lax.stop_gradient(d_BS))


def bounded(d_BS: Array) -> Array:
    """A log-ratio that exp can take."""
    return jnp.clip(d_BS, -MAX_LOG_RATIO, MAX_LOG_RATIO)
