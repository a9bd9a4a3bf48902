"""Direct preference optimisation (arXiv 2305.18290): of two continuations the chosen one, beside a reference.

In: log-probs of both, summed over their sampled tokens, and the reference's. Out: a loss a pair. Which two are a pair
is data/preferences.py's job.
"""

from __future__ import annotations

import jax
from jaxtyping import Array, Float

from jaxagent.errors import ConfigError

PerPair = Float[Array, "P"]


def dpo(
    chosen_P: PerPair,
    rejected_P: PerPair,
    *,
    chosen_ref_P: PerPair,
    rejected_ref_P: PerPair,
    beta: float = 0.1,
) -> tuple[PerPair, PerPair]:
    """(-log sigma(margin), margin), margin = beta ((chosen - its reference) - (rejected - its reference)).

    The gradient in `chosen` is -beta sigma(-margin). At the start both are the reference's: margin 0, loss log 2.
    beta .1, -10 and -12 beside references of -11: margin .2, loss .5981, coefficient -.0450.
    """
    if beta <= 0:
        raise ConfigError(f"beta={beta} of a preference loss; expected a number above 0, .1 is usual")
    margin_P = beta * ((chosen_P - chosen_ref_P) - (rejected_P - rejected_ref_P))
    return -jax.nn.log_sigmoid(margin_P), margin_P
