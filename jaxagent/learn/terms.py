"""Loss terms. Each is a `Loss` (loss.py): per-token loss [B, S] and metric sums, from current scores and token streams.

Policy losses, what wraps one (`corrected`, `pulled`), divergences from another policy, and imitation.

Notation: rho = exp(lp - old), l = lp - reference. Advantages are "larger is better"; losses are minimised.
Conventions and numbers follow PPO (Schulman 2017), LOOP (2502.01600), GSPO (2507.18071) and CISPO (2506.13585).
Distillation is learn/distill.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxagent.errors import ConfigError
from jaxagent.learn.loss import Level, Loss, Scores, Streams, bounded, log_ratio, ratio
from jaxagent.learn.sums import Entry, Sums, max_of, mean_of

Estimator = Literal["k1", "k2", "k3", "k3+"]
MAX_K3 = 10.0
MISMATCH = "mismatch"


# --- policy losses ----------------------------------------------------------------------------------------


def policy_gradient(level: Level | None = None) -> Loss:
    """-A lp, without a ratio (REINFORCE). With a level -rho A, weighted but never clipped: for later steps of an
    iteration, whose tokens an older policy sampled; at rho = 1 the gradients are the same."""
    if level is not None:
        _check(0.0, 0.0, level, False, None)

    def loss(scores: Scores, streams: Streams) -> tuple[Array, Sums]:
        if level is None:
            return -streams.advantage_BS * scores.logprob_BS, {}
        rho_BS = ratio(scores, streams, level)
        return -rho_BS * streams.advantage_BS, _ratio_sums(rho_BS, streams.mask_BS)

    return Loss(loss, level=level or "token")


def clipped_pg(
    low: float = 0.2,
    high: float | None = None,
    *,
    level: Level = "token",
    log_symmetric: bool = False,
    dual: float | None = None,
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
        return -objective_BS, sums

    return Loss(loss, level=level)


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


# --- what wraps a policy loss -------------------------------------------------------------------------------


def corrected(loss: Loss) -> Loss:
    """`loss` times the constant stream "mismatch" (batch/mismatch.py). Counts and metrics stay those of all tokens: a
    token that the correction rejects leaves the sum, not the denominator."""

    def fn(scores: Scores, streams: Streams) -> tuple[Array, Sums]:
        loss_BS, sums = loss.fn(scores, streams)
        return loss_BS * streams.logprobs[MISMATCH], sums

    return replace(loss, fn=fn, needs=(*loss.needs, MISMATCH))


def pulled(loss: Loss, coef: float) -> Loss:
    """`loss` with A - coef (lp - old), detached: a pull to the policy at the start of the iteration (the LOOP code's KL
    in the advantage). A .5, log-ratio .2, coef .1 -> .48."""
    if coef < 0:
        raise ConfigError(f"kl coefficient {coef} would push away from the old policy; give 0 or more")

    def fn(scores: Scores, streams: Streams) -> tuple[Array, Sums]:
        pull_BS = coef * jax.lax.stop_gradient(log_ratio(scores, streams))
        return loss.fn(scores, replace(streams, advantage_BS=streams.advantage_BS - pull_BS))

    return replace(loss, fn=fn, needs=(*loss.needs, "old"))


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


# --- divergences from another policy ------------------------------------------------------------------------


def kl(estimator: Estimator = "k3", *, stream: str = "reference") -> Loss:
    """KL(policy || stream) estimated at the sampled tokens, l = lp - stream.

    k1 = l (no gradient in expectation);  k2 = l^2 / 2 (gradient of the reverse KL);  k3 = e^-l - 1 + l
    (unbiased value, gradient of the FORWARD KL);  k3+ = value of k3, gradient of k2.
    """
    if estimator not in get_args(Estimator):
        raise ConfigError(f"KL estimator {estimator!r} is unknown; known: {', '.join(get_args(Estimator))}")

    def loss(scores: Scores, streams: Streams) -> tuple[Array, Sums]:
        l_BS = bounded(scores.logprob_BS - streams.logprobs[stream])
        k2_BS = 0.5 * l_BS**2
        k3_BS = jnp.minimum(jnp.exp(-l_BS) - 1.0 + l_BS, MAX_K3)
        straight_BS = k2_BS + jax.lax.stop_gradient(k3_BS - k2_BS)
        value_BS = {"k1": l_BS, "k2": k2_BS, "k3": k3_BS, "k3+": straight_BS}[estimator]
        return value_BS, {f"kl/{stream}_{estimator}": mean_of(value_BS, streams.mask_BS)}

    return Loss(loss, (stream,))


# --- imitation, entropy ----------------------------------------------------------------------------------------


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

    return Loss(loss)
