"""Loss terms. Each is a `Loss`: per-token loss [B, S] and metric sums, from current scores and token streams.

A loss knows tokens, not algorithms: the step multiplies it by the term's weight stream, sums over everything
and divides by the term's global count. Tokens of weight 0 reach neither loss nor gradient nor metric: they
are masked before any exp, so nothing there can become inf * 0.

Notation: rho = exp(lp - old), l = lp - reference. Advantages are "larger is better"; losses are minimised.
Conventions and numbers follow PPO (Schulman 2017), LOOP (2502.01600), GSPO (2507.18071) and CISPO (2506.13585).
Distillation is learn/distill.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxagent.errors import ConfigError
from jaxagent.learn.sums import Entry, Sums, max_of, mean_of

Level = Literal["token", "turn", "trajectory", "turn_geo", "trajectory_geo"]
Estimator = Literal["k1", "k2", "k3", "k3+"]
MAX_LOG_RATIO = 20.0  # exp(20) = 4.9e8: a ratio beyond it carries no information
MAX_K3 = 10.0


class Scores(NamedTuple):
    """What the current parameters say about the scored tokens; differentiable."""

    logprob_BS: Float[Array, "B S"]
    entropy_BS: Float[Array, "B S"]


@dataclass(frozen=True)
class Streams:
    """Constants of a micro-batch. `logprobs` may hold "old", "behaviour", "reference", "teacher".

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
        return self.fn(Scores(*(clean(value_BS) for value_BS in scores)), streams)


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
        return jnp.exp(_clip(d_BS))
    group_BS = streams.turn_BS if level.startswith("turn") else streams.trajectory_BS
    sum_BS = group_sum(d_BS, group_BS)
    if not level.endswith("_geo"):
        return jnp.exp(_clip(sum_BS))
    count_BS = group_sum(streams.mask_BS.astype(jnp.float32), group_BS)
    s_BS = jax.lax.stop_gradient(jnp.exp(jnp.minimum(sum_BS / jnp.maximum(count_BS, 1.0), 10.0)))
    return s_BS * jnp.exp(d_BS - jax.lax.stop_gradient(d_BS))


def _clip(d_BS: Array) -> Array:
    return jnp.clip(d_BS, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def token_trunc(cap: float = 2.0) -> Function:
    """Sampler/trainer mismatch weight min(exp(old - behaviour), cap), a constant (TIS)."""

    def weight(scores: Scores, streams: Streams) -> tuple[Array, Sums]:
        mask_BS = streams.mask_BS
        old_BS = jax.lax.stop_gradient(streams.logprobs.get("old", scores.logprob_BS))
        rho_BS = jnp.exp(_clip(old_BS - streams.logprobs["behaviour"]))
        sums: dict[str, Entry] = {
            "mismatch/ratio_mean": mean_of(rho_BS, mask_BS),
            "mismatch/ratio_max": max_of(rho_BS, mask_BS),
            "mismatch/trunc_frac": mean_of((rho_BS > cap).astype(jnp.float32), mask_BS),
            "mismatch/k3": mean_of(rho_BS - 1.0 - jnp.log(rho_BS), mask_BS),
        }
        return jnp.minimum(rho_BS, cap), sums

    return weight


def clipped_pg(
    low: float = 0.2,
    high: float | None = None,
    *,
    level: Level = "token",
    log_symmetric: bool = False,
    dual: float | None = None,
    mismatch: Function | None = None,
) -> Loss:
    """-min(rho A, clip(rho, lo, hi) A); with `dual` c, at most -c A where A < 0.

    Bounds [1 - low, 1 + high]; high defaults to low; log_symmetric: [1 / (1 + low), 1 + high] (LOOP).
    (rho, A) = (1.5, 1), (1.5, -1), (.5, 1), (.5, -1) at low = .2 gives -1.2, 1.5, -.5, .8.
    """
    high = low if high is None else high
    _check(low, high, level, log_symmetric, dual)
    lower, upper = (1.0 / (1.0 + low) if log_symmetric else 1.0 - low), 1.0 + high

    def loss(scores: Scores, streams: Streams) -> tuple[Array, Sums]:
        rho_BS, advantage_BS, mask_BS = ratio(scores, streams, level), streams.advantage_BS, streams.mask_BS
        plain_BS, clipped_BS = rho_BS * advantage_BS, jnp.clip(rho_BS, lower, upper) * advantage_BS
        objective_BS = jnp.minimum(plain_BS, clipped_BS)
        sums = _ratio_sums(rho_BS, mask_BS)
        bites_BS = clipped_BS < plain_BS
        sums["ratio/clip_frac_hi"] = mean_of((bites_BS & (rho_BS > upper)).astype(jnp.float32), mask_BS)
        sums["ratio/clip_frac_lo"] = mean_of((bites_BS & (rho_BS < lower)).astype(jnp.float32), mask_BS)
        if dual is not None:
            floor_BS = dual * advantage_BS
            caught_BS = (advantage_BS < 0) & (objective_BS < floor_BS)
            objective_BS = jnp.where(caught_BS, floor_BS, objective_BS)
            sums["ratio/dual_frac"] = mean_of(caught_BS.astype(jnp.float32), mask_BS)
        if mismatch is None:
            return -objective_BS, sums
        weight_BS, more = mismatch(scores, streams)
        return -objective_BS * weight_BS, {**sums, **more}

    return Loss(loss, ("behaviour",) if mismatch else (), level)


def cispo(low: float = 1.0, high: float = 0.28) -> Loss:
    """-sg(clip(rho, 1 - low, 1 + high)) A lp: clips the weight, no token loses its gradient; low=1 is off."""
    _check(low, high, "token", False, None)

    def loss(scores: Scores, streams: Streams) -> tuple[Array, Sums]:
        rho_BS = jax.lax.stop_gradient(ratio(scores, streams, "token"))
        weight_BS = jnp.clip(rho_BS, 1.0 - low, 1.0 + high)
        sums = _ratio_sums(rho_BS, streams.mask_BS)
        sums["ratio/clip_frac_hi"] = mean_of((rho_BS > 1.0 + high).astype(jnp.float32), streams.mask_BS)
        return -weight_BS * streams.advantage_BS * scores.logprob_BS, sums

    return Loss(loss)


def _ratio_sums(rho_BS: Array, mask_BS: Array) -> dict[str, Entry]:
    rho_BS = jax.lax.stop_gradient(rho_BS)
    return {
        "ratio/mean": mean_of(rho_BS, mask_BS),
        "ratio/max": max_of(rho_BS, mask_BS),
        "ratio/approx_kl": mean_of(rho_BS - 1.0 - jnp.log(rho_BS), mask_BS),
    }


def _check(low: float, high: float, level: str, log_symmetric: bool, dual: float | None) -> None:
    if level not in get_args(Level):
        raise ConfigError(f"ratio level {level!r} is unknown; known: {', '.join(get_args(Level))}")
    if low < 0 or high < 0 or (low > 1 and not log_symmetric):
        raise ConfigError(f"clip range low={low}, high={high}: both are distances from 1, low at most 1")
    if dual is not None and dual <= 1:
        raise ConfigError(f"dual={dual}: the dual clip must be above 1")


def kl(estimator: Estimator = "k3", *, stream: str = "reference") -> Loss:
    """KL(policy || stream) estimated at the sampled tokens, l = lp - stream.

    k1 = l (no gradient in expectation);  k2 = l^2 / 2 (gradient of the reverse KL);  k3 = e^-l - 1 + l
    (unbiased value, gradient of the FORWARD KL);  k3+ = value of k3, gradient of k2.
    """
    if estimator not in get_args(Estimator):
        raise ConfigError(f"KL estimator {estimator!r} is unknown; known: {', '.join(get_args(Estimator))}")

    def loss(scores: Scores, streams: Streams) -> tuple[Array, Sums]:
        l_BS = _clip(scores.logprob_BS - streams.logprobs[stream])
        k2_BS = 0.5 * l_BS**2
        k3_BS = jnp.minimum(jnp.exp(-l_BS) - 1.0 + l_BS, MAX_K3)
        straight_BS = k2_BS + jax.lax.stop_gradient(k3_BS - k2_BS)
        value_BS = {"k1": l_BS, "k2": k2_BS, "k3": k3_BS, "k3+": straight_BS}[estimator]
        return value_BS, {f"kl/{stream}_{estimator}": mean_of(value_BS, streams.mask_BS)}

    return Loss(loss, (stream,))


def cross_entropy() -> Loss:
    """-lp."""

    def loss(scores: Scores, streams: Streams) -> tuple[Array, Sums]:
        return -scores.logprob_BS, {"ce/nll": mean_of(-scores.logprob_BS, streams.mask_BS)}

    return Loss(loss)


def weighted_likelihood() -> Loss:
    """-A lp with a constant A that need not be an advantage: a token's weight in a weighted cross-entropy (SIRI)."""

    def loss(scores: Scores, streams: Streams) -> tuple[Array, Sums]:
        sums: dict[str, Entry] = {"likelihood/nll": mean_of(-scores.logprob_BS, streams.mask_BS)}
        return -streams.advantage_BS * scores.logprob_BS, sums

    return Loss(loss)


def entropy_bonus() -> Loss:
    """-H, the exact entropy at the training temperature; use a positive coefficient to keep entropy up."""

    def loss(scores: Scores, streams: Streams) -> tuple[Array, Sums]:
        return -scores.entropy_BS, {"entropy/bonus": mean_of(scores.entropy_BS, streams.mask_BS)}

    return Loss(loss, entropy=True)
