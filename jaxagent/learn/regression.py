"""Regression of the log-ratio to the reference on the advantage: WebRL's policy loss (arXiv 2411.02337)."""

from __future__ import annotations

from jaxtyping import Array

from jaxagent.errors import ConfigError
from jaxagent.learn.loss import Loss, Scores, Streams, bounded
from jaxagent.learn.sums import Sums, mean_of


def advantage_regression(beta: float = 0.5, *, stream: str = "reference") -> Loss:
    """(beta (lp - reference) - A)^2: beta .5, log-ratio .2, A .4 -> .09. Its least is pi = reference e^(A / beta)."""
    if beta <= 0:
        raise ConfigError(f"beta={beta} of a regression to the advantage; expected a number above 0")

    def loss(scores: Scores, streams: Streams) -> tuple[Array, Sums]:
        l_BS = bounded(scores.logprob_BS - streams.logprobs[stream])
        error_BS = beta * l_BS - streams.advantage_BS
        return error_BS**2, {"regression/log_ratio": mean_of(l_BS, streams.mask_BS)}

    return Loss(loss, (stream,))
