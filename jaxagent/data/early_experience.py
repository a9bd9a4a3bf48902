"""An agent's own transitions beside an expert's, without rewards: early experience (arXiv 2510.08558).

In: expert steps (s, a, s'), and of each the outcomes of other actions that the agent tried in s. Out, for training:

    world model       s a s'        the next state is learnt, which nothing else here does: mask 0 0 0 0 0 1 1 1
    self-reflection   s c a         why the expert's action is better than what else was tried, and the action
    imitation         s a

Playing the other actions (rollout/branch.py) and writing reflections are not the job of this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from jaxagent.errors import ConfigError


@dataclass(frozen=True)
class Transition:
    state: str
    action: str
    after: str


@dataclass(frozen=True)
class Tried:
    """An expert's transition, and what other actions led to from the same state."""

    expert: Transition
    others: tuple[Transition, ...]


def world_model_transitions(tried: Sequence[Tried]) -> list[Transition]:
    """All transitions, the expert's first: 3 states with 2 alternatives each are 9.

    An alternative that is the expert's action says nothing new; equal outcomes of different actions do.
    """
    return [
        transition
        for item in tried
        for transition in (item.expert, *(t for t in item.others if t.action != item.expert.action))
    ]


def reflections(tried: Sequence[Tried]) -> list[Tried]:
    """States where an alternative led elsewhere, with those alternatives: a rationale for each can be written."""
    out = []
    for item in tried:
        others = tuple(
            t for t in item.others if t.action != item.expert.action and t.after != item.expert.after
        )
        if others:
            out.append(Tried(item.expert, others))
    return out


def joined(
    *parts: tuple[Sequence[int], bool],
) -> tuple[Int[np.ndarray, "T"], Bool[np.ndarray, "T"]]:
    """Token ids of the parts in a row, and which are learnt: (s, no), (a, no), (s', yes)."""
    ids = [token for part, _ in parts for token in part]
    mask = [learnt for part, learnt in parts for _ in part]
    return np.array(ids, np.int32), np.array(mask, bool)


def optimiser_steps(samples: int, *, batch: int, epochs: int) -> int:
    """Steps of so many epochs; early experience takes as many in all as imitation alone would, so that it is compared.

    1,000 expert steps, batches of 10, 3 epochs: 300, which is also one epoch of 3,000 transitions.
    """
    if batch < 1 or epochs < 0:
        raise ConfigError(
            f"batch={batch}, epochs={epochs}; expected a batch of 1 or more and no negative epochs"
        )
    return -(-samples // batch) * epochs
