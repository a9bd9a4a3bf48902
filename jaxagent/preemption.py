"""SIGTERM as a question the loop can ask. Cloud machines send it seconds before they are taken away.

    with Preemption() as preemption:
        for iteration in ...:
            if preemption.requested:
                checkpointer.save(...); checkpointer.wait()
                raise SystemExit(EXIT_PREEMPTED)

The handler only sets a flag, so the iteration in progress ends before the state is saved. A second signal
ends the process at once. Not the job of this file: agreement between hosts; each gets its own signal.
"""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType

EXIT_PREEMPTED = 75  # sysexits.h EX_TEMPFAIL: saved and ended on request; run the same command again


class Preempted(Exception):
    """The run was asked to stop; its state is saved."""


class Preemption:
    """Catches SIGTERM between `__enter__` and `__exit__` (main thread only) and restores the old handler."""

    def __init__(self, *, signals: tuple[signal.Signals, ...] = (signal.SIGTERM,)):
        self.requested = False
        self._signals = signals
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> Preemption:
        for number in self._signals:
            self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.requested = True
