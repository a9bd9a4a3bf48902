"""The iteration, for parts of a stage that change along it. In: any source. Out: the same, and a number to ask for.

    clock = IterationOf(TaskSource(…))
    Stage(source=clock, credit=Attribution(judge, alpha=lambda: cosine_alpha(0.1, clock.iteration, 40)), …)

The loop names the iteration to the source alone; so the number is right after a resume too, with nothing to be saved.
Rollouts may run ahead: the source is then asked for later iterations before it has observed the present one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from jaxagent.plan import Plan
from jaxagent.stage import Source
from jaxagent.types import Group, Metrics


class InFlight:
    """The iterations that a source was asked for and has not observed. Nothing of it is saved: at a checkpoint nothing
    is in flight. `clear` it when a source is restored, for a rollback gives up what was.

    asked 4, 5, present 4, observed, present 5
    """

    def __init__(self) -> None:
        self._asked: deque[int] = deque()
        self.present = 0

    def asked(self, iteration: int) -> None:
        self._asked.append(iteration)
        self.present = self._asked[0]

    def observed(self) -> None:
        """The present iteration has been learnt from."""
        if self._asked:
            self._asked.popleft()
        self.present = self._asked[0] if self._asked else self.present

    def clear(self) -> None:
        self._asked.clear()


class IterationOf:
    """`Source` that knows which iteration is being learnt from, from 0."""

    def __init__(self, source: Source):
        self.source = source
        self._flight = InFlight()

    @property
    def iteration(self) -> int:
        return self._flight.present

    def next(self, iteration: int) -> Sequence[Plan] | Sequence[Group]:
        self._flight.asked(iteration)
        return self.source.next(iteration)

    def observe(self, groups: Sequence[Group]) -> Metrics:
        self._flight.observed()
        return self.source.observe(groups)

    def state(self) -> Mapping[str, Any]:
        return self.source.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._flight.clear()
        self.source.restore(state)

    def close(self) -> None:
        self.source.close()
