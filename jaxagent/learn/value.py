"""The loss of a value head, and what its coefficient may do over a stage.

    L_v = 1/2 max((V - ret)^2, (clip(V, V_old - c, V_old + c) - ret)^2)          c 0 is off: 1/2 (V - ret)^2

Targets come as the token stream "return", old values as "value". Observation tokens have neither. V .9, V_old .5,
c .2, ret 1: clipped to .7, loss .045.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array

from jaxagent.errors import ConfigError
from jaxagent.learn.loss import Loss, Scores, Streams
from jaxagent.learn.sums import Entry, Sums, explained_of, mean_of


def value_loss(clip: float = 0.0) -> Loss:
    """See the module docstring (PPO, Schulman et al. 2017, and its reference code)."""
    if clip < 0:
        raise ConfigError(f"value clip={clip}: a distance from the old value, or 0 for none")

    def loss(scores: Scores, streams: Streams) -> tuple[Array, Sums]:
        if scores.value_BS is None:
            raise ConfigError("the value loss needs a model with a value head; give the recipe a `critic`")
        value_BS, return_BS, mask_BS = scores.value_BS, streams.logprobs["return"], streams.mask_BS
        square_BS = (value_BS - return_BS) ** 2
        sums: dict[str, Entry] = {
            "value/mean": mean_of(value_BS, mask_BS),
            "critic/expl_var": explained_of(return_BS, return_BS - value_BS, mask_BS),
        }
        if clip:
            old_BS = streams.logprobs["value"]
            near_BS = (jnp.clip(value_BS, old_BS - clip, old_BS + clip) - return_BS) ** 2
            sums["critic/clipfrac"] = mean_of((near_BS > square_BS).astype(jnp.float32), mask_BS)
            square_BS = jnp.maximum(square_BS, near_BS)
        loss_BS = 0.5 * square_BS
        return loss_BS, {**sums, "critic/loss": mean_of(loss_BS, mask_BS)}

    return Loss(loss, ("return", "value") if clip else ("return",))


def decaying(first: float, last: float, steps: int) -> Callable[[int], float]:
    """A coefficient that goes from `first` to `last` in a straight line over so many optimiser steps."""
    if steps < 1:
        raise ConfigError(f"a coefficient cannot decay over {steps} optimiser steps; expected 1 or more")
    return lambda step: first + (last - first) * min(step / steps, 1.0)
