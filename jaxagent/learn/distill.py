"""Distillation losses: how far the policy is from a teacher, at tokens that one of them sampled.

With l = lp - teacher, rho = exp(lp - old) and sampling from the policy that gave "old":

    estimator   loss per token                  expected gradient
    iw_k3       rho (e^-l - 1 + l)              rho l grad lp: KL(policy || teacher), exactly, whatever old was
    k2          l^2 / 2                         KL(policy || teacher) if old is the policy
    k3_direct   e^-l - 1 + l                    KL(teacher || policy): the other direction, as often implemented
    k3+         value of k3, gradient of k2     as k2
    pg          -min(rho A, clip(rho) A), A = teacher - old: the policy-gradient view; as iw_k3 at rho = 1

Where the teacher itself sampled, "old" is the teacher: rho = e^l, with the same identity for iw_k3, but prefixes are
the teacher's and rho is heavy-tailed ("distill/ess"). A stop-gradient on rho would turn iw_k3 into k3_direct.
Skill-SD: 2604.10674. Not the job of this file: who the teacher is (teacher.py), which tokens count (batch/targets.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxagent.errors import ConfigError
from jaxagent.learn.loss import Loss, Scores, Streams, bounded, ratio
from jaxagent.learn.sums import Entry, Sums, effective_of, max_of, mean_of
from jaxagent.learn.terms import MAX_K3, clipped_pg

Estimator = Literal["iw_k3", "k2", "k3_direct", "k3+", "pg"]


def distillation(
    estimator: Estimator = "iw_k3",
    *,
    stream: str = "teacher",
    rho_max: float | None = None,
    clip: tuple[float, float] = (0.2, 0.2),
) -> Loss:
    """The policy towards the teacher whose log-probs are `stream`. See the module docstring for the estimators.

    rho_max: caps rho of iw_k3, and breaks its exactness. clip: distances from 1 of the bounds of pg.
    (p, teacher) = (.5, .2) and (.2, .5): gradient in lp .9163, -.9163 with iw_k3, .6, -1.5 with k3_direct.
    """
    if estimator not in get_args(Estimator):
        raise ConfigError(f"estimator {estimator!r} is unknown; known: {', '.join(get_args(Estimator))}")
    if rho_max is not None and rho_max <= 0:
        raise ConfigError(f"rho_max={rho_max}: a cap on an importance ratio is above 0 (None is no cap)")
    policy_gradient = clipped_pg(*clip)

    def loss(scores: Scores, streams: Streams) -> tuple[Array, Sums]:
        rho_BS = ratio(scores, streams, "token")
        l_BS = bounded(scores.logprob_BS - streams.logprobs[stream])
        k3_BS = jnp.exp(-l_BS) - 1.0 + l_BS
        sums = _sums(rho_BS, l_BS, k3_BS, streams)
        if estimator == "iw_k3":
            capped_BS = rho_BS if rho_max is None else jnp.minimum(rho_BS, rho_max)
            return capped_BS * k3_BS, sums
        if estimator == "pg":
            old_BS = streams.logprobs.get("old", scores.logprob_BS)
            advantage_BS = jax.lax.stop_gradient(streams.logprobs[stream] - old_BS)
            loss_BS, more = policy_gradient(scores, replace(streams, advantage_BS=advantage_BS))
            return loss_BS, {**sums, **more}
        capped_BS, k2_BS = jnp.minimum(k3_BS, MAX_K3), 0.5 * l_BS**2
        straight_BS = k2_BS + jax.lax.stop_gradient(capped_BS - k2_BS)
        return {"k2": k2_BS, "k3_direct": capped_BS, "k3+": straight_BS}[estimator], sums

    return Loss(loss, (stream,))


def _sums(
    rho_BS: Float[Array, "B S"], l_BS: Float[Array, "B S"], k3_BS: Float[Array, "B S"], streams: Streams
) -> dict[str, Entry]:
    mask_BS = streams.mask_BS
    return {
        "distill/k3": mean_of(k3_BS, mask_BS),
        "distill/log_ratio": mean_of(l_BS, mask_BS),
        "distill/below_teacher_frac": mean_of((l_BS < 0).astype(jnp.float32), mask_BS),
        "distill/rho_mean": mean_of(rho_BS, mask_BS),
        "distill/rho_max": max_of(rho_BS, mask_BS),
        "distill/ess": effective_of(rho_BS, mask_BS),
    }
