"""Tasks that a language model wrote: which of them are kept, what is explored next, how many an iteration holds.

In: what was written, with the writer's confidence. Out: which are kept. AgentEvolver (arXiv 2511.10395), CuES
(2512.01311), DRAFT (2410.08197). Not the job of this file: asking a model, and playing a task before it is believed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from jaxagent.credit.group import whole_share
from jaxagent.errors import ConfigError
from jaxagent.skills.embed import unit_rows
from jaxagent.skills.retrieve import jaccard


def deduplicated(queries: Sequence[str], confidence: Sequence[float], *, threshold: float = 0.8) -> list[int]:
    """Indices of what is kept, the most confident first: a query goes if its words are those of a kept one.

    "Send 5 dollars to Bob" and "send 5 dollars to bob now" share 5 of 6 words, .8333: one of them is kept at .8.
    """
    kept: list[int] = []
    for i in sorted(range(len(queries)), key=lambda i: -confidence[i]):
        alike = jaccard(queries[i], [queries[j] for j in kept], sizes=(1,))
        if alike.max(initial=0.0) < threshold:
            kept.append(i)
    return kept


def confident(confidence: float | None, *, least: float = 0.7) -> bool:
    """Whether the writer is sure enough. An answer without its confidence is not (CuES's code reads it as 1)."""
    return confidence is not None and confidence >= least


def least_tried(counts: Mapping[str, int]) -> str:
    """The action that was tried least at a state, the first of equals: {login: 2, search: 0, list: 1} -> search."""
    if not counts:
        raise ConfigError("a state without an action has none to try; reset the environment")
    return min(counts, key=lambda action: counts[action])


def synthetic_tasks(tasks: int, share: float) -> int:
    """How many of an iteration's tasks were written by a model: p = (1 - share) p_target + share p_synthetic."""
    if tasks < 0 or not 0 <= share <= 1:
        raise ConfigError(f"tasks={tasks}, share={share}: expected a number of tasks and a share from 0 to 1")
    return whole_share(share, tasks)


def closest(new_D: Float[np.ndarray, "D"], pool_ND: Float[np.ndarray, "N D"]) -> float:
    """Largest cosine with what is there already; -1 with nothing.  (.99, .14) beside (1, 0), (0, 1): .9901."""
    if not len(pool_ND):
        return -1.0
    return float((unit_rows(pool_ND) @ unit_rows(new_D[None])[0]).max())
