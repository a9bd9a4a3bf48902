"""Which action tokens are literals: what stands inside quotes, and digits. They have to be copied, not composed.

L marks them:

    pay ( to = "  me zo  " , amount =  4 1 )
    .   . .  . .  L  L   . .    .   .  L L .
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool

from jaxagent.batch.targets import TokenWeight
from jaxagent.chat.tokenizer import Tokenizer
from jaxagent.types import Segment, Trajectory

QUOTES = "\"'"


def literal_mask(pieces: list[str]) -> Bool[np.ndarray, "T"]:
    """True for pieces inside a quotation, and for digits. A piece may hold several quote characters."""
    mask_T = np.zeros(len(pieces), bool)
    quote = ""
    for t, piece in enumerate(pieces):
        mask_T[t] = piece.strip().isdigit() or (bool(quote) and not any(mark in piece for mark in QUOTES))
        for character in piece:
            if quote:
                quote = "" if character == quote else quote
            elif character in QUOTES:
                quote = character
    return mask_T


def literal_weight(tokenizer: Tokenizer, factor: float) -> TokenWeight:
    """Token weight for imitation: `factor` on the literals of every message, 1 on the rest."""
    pieces = [tokenizer.decode([token]) for token in range(tokenizer.vocab_size)]

    def weight(trajectory: Trajectory, segment: Segment) -> np.ndarray:
        weight_T = np.ones(len(segment.ids_T), np.float32)
        for step in range(len(trajectory.steps)):
            (where_N,) = np.nonzero(segment.step_T == step)
            literal_N = literal_mask([pieces[token] for token in segment.ids_T[where_N]])
            weight_T[where_N[literal_N]] = factor
        return weight_T

    return weight
