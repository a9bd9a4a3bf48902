"""The iteration, for parts of a stage that change along it. In: any source. Out: the same, and a number to ask for.

    clock = IterationOf(TaskSource(…))
    Stage(source=clock, credit=Attribution(judge, alpha=lambda: cosine_alpha(0.1, clock.iteration, 40)), …)

The loop names the iteration to the source alone; so the number is right after a resume too, with nothing to be saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxagent.stage import Plan, Source
from jaxagent.types import Group, Metrics


class IterationOf:
    """`Source` that remembers which iteration it was asked for last, from 0."""

    def __init__(self, source: Source):
        self.source = source
        self.iteration = 0

    def next(self, iteration: int) -> Sequence[Plan] | Sequence[Group]:
        self.iteration = iteration
        return self.source.next(iteration)

    def observe(self, groups: Sequence[Group]) -> Metrics:
        return self.source.observe(groups)

    def state(self) -> Mapping[str, Any]:
        return self.source.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self.source.restore(state)

    def close(self) -> None:
        self.source.close()
