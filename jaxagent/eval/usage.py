"""How many tokens an episode took, by message: from its token ids, or as an endpoint counted them.

context   p p p [a a e]          p p p a a e o o o [a a]         3, 9: read before each message
sampled          3                                   2           3, 2
processed                                           11           each position once (with a KV cache)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxagent.types import Trajectory


@dataclass(frozen=True)
class Usage:
    """context, sampled: tokens before and in each message. processed: lengths of the sequences that a decoder with a
    KV cache works through once: the segments of a trajectory, or a conversation's last context and message."""

    context: tuple[int, ...]
    sampled: tuple[int, ...]
    processed: tuple[int, ...]


def usage(trajectory: Trajectory) -> Usage | None:
    """None where nobody counted: a scripted agent, or an endpoint that does not say."""
    if "usage" in trajectory.extra:
        counts = trajectory.extra["usage"]
        if not counts:
            return None
        context, sampled = tuple(counts["context"]), tuple(counts["sampled"])
        if "processed" in counts:
            return Usage(context, sampled, tuple(counts["processed"]))
        return Usage(context, sampled, (context[-1] + sampled[-1],))
    first = {}
    for segment in trajectory.segments:
        for k in np.unique(segment.step_T[segment.step_T >= 0]).tolist():
            first[k] = int(np.argmax(segment.step_T == k))
    return Usage(
        context=tuple(first.get(step.k, 0) for step in trajectory.steps),
        sampled=tuple(int(step.ids_T.size) for step in trajectory.steps),
        processed=tuple(int(segment.ids_T.size) for segment in trajectory.segments),
    )
