"""Rollouts that run ahead of the update: while an iteration is learnt from, the next ones' episodes are played.

With a lag of n, iteration i + n may be begun before iteration i has been learnt from, unless something must find
nothing in flight in between: a checkpoint, an evaluation, the end of the stage. What is saved is therefore always the
state between two iterations; nothing that is in flight is ever part of it. Without a lag nothing here does anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from jaxagent.collected import Collected

Waiting = Callable[[], Collected]


class Ahead:
    """Owns the threads that wait for rollouts. Close it."""

    def __init__(self, lag: int):
        self.lag = lag
        self._threads = ThreadPoolExecutor(lag, thread_name_prefix="ahead") if lag else None
        self._futures: list[Future[Collected]] = []
        self._begun: dict[int, Waiting] = {}

    @property
    def pending(self) -> bool:
        """Whether iterations are begun that have not been taken."""
        return bool(self._begun)

    def run(self, work: Waiting) -> Waiting:
        """Begin work; the returned function waits for it. Without a lag it runs when that is called."""
        if self._threads is None:
            return work
        future = self._threads.submit(work)
        self._futures = [item for item in self._futures if not item.done()] + [future]
        return future.result

    def keep(self, iteration: int, waiting: Waiting) -> None:
        self._begun[iteration] = waiting

    def take(self, iteration: int) -> Waiting | None:
        return self._begun.pop(iteration, None)

    def may_begin(self, iteration: int, last: int, quiet: Callable[[int], bool]) -> Iterator[int]:
        """Iterations up to `last` that may be begun before `iteration` is learnt from and were not.

        quiet: whether nothing may be in flight when so many iterations of the stage are done.
        """
        for later in range(iteration + 1, min(iteration + self.lag, last) + 1):
            if quiet(later):
                return
            if later not in self._begun:
                yield later

    def clear(self, cancel: Callable[[], None]) -> None:
        """Give up what is in flight: `cancel` ends the episodes, and whoever waits for them is waited for."""
        self._begun.clear()
        if self._futures:
            cancel()
        for future in self._futures:
            future.cancel()
            if not future.cancelled():
                future.exception()
        self._futures = []

    def close(self, cancel: Callable[[], None]) -> None:
        self.clear(cancel)
        if self._threads is not None:
            self._threads.shutdown()
