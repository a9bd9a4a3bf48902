"""What a scoring pass says about the tokens of one segment."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class TokenScores(NamedTuple):
    """Log-prob and entropy at every sampled token, 0 elsewhere."""

    logprob_T: Float[np.ndarray, "T"]
    entropy_T: Float[np.ndarray, "T"]
