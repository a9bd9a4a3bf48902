"""What a person sees while a run goes on: progress with rates and an ETA, and lines of an iteration's numbers.

On a terminal the bar is live (rich) and lines scroll above it; anywhere else there are plain lines with the same
numbers. Of iterations shorter than `PAUSE` seconds some get no line. The record is metrics.py's; nothing is stored
here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from jaxagent.metrics import lookup

PAUSE = 2.0  # seconds between two lines, unless an iteration has something to say

# metric (found by `lookup`) -> (label, format); a line shows those that the iteration has, in this order.
Columns = Mapping[str, tuple[str, str]]
ALWAYS: Columns = {
    "entropy": ("entropy", "{:.2f}"),
    "grad_norm": ("|g|", "{:.2f}"),
    "seconds/total": ("time", "{:.1f}s"),
}
SUPERVISED: Columns = {"loss/total": ("loss", "{:.4f}"), **ALWAYS}
# No loss: that of an on-policy step is 0 whatever was learnt.
ROLLED_OUT: Columns = {
    "reward/mean": ("reward", "{:.3f}"),
    "rollout/success": ("success", "{:.0%}"),
    "rollout/exec_fail": ("failed steps", "{:.0%}"),
    "rollout/turns": ("turns", "{:.1f}"),
    **ALWAYS,
}


class RunConsole:
    """Progress of one stage after another. `clock` is injectable for tests."""

    def __init__(
        self,
        console: Console | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        window: int = 20,
    ):
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._ticks: deque[tuple[float, int]] = deque(maxlen=window + 1)
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._name, self._total, self._done = "", 0, 0
        self._spoke = -PAUSE  # when the last line was printed
        self._compiling = True  # the ticks begin with an iteration that compiles

    def start(self, name: str, total: int, *, done: int = 0) -> None:
        """Begin a stage of `total` iterations, `done` of which are behind (a resumed run)."""
        self.stop()
        self._name, self._total, self._done = name, total, done
        self._ticks.clear()
        self._ticks.append((self._clock(), done))
        self._spoke, self._compiling = -PAUSE, True
        if self._console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                console=self._console,
                transient=True,
            )
            self._task = self._progress.add_task(escape(name), total=total, completed=done, rate="")
            self._progress.start()

    def iteration(self, number: int, metrics: Mapping[str, float], *, note: str = "") -> None:
        """One finished iteration; `number` counts from 1. A stage's first and last always get their line."""
        self._done = number
        now = self._clock()
        if self._compiling and len(self._ticks) > 1:
            self._ticks.popleft()
            self._compiling = False
        self._ticks.append((now, number))
        if note or number == self._total or now - self._spoke >= PAUSE:
            self._spoke = now
            line = self._line(number, metrics, note)
            self.message(line if self._progress is not None else f"{line}  {self.rate()}".rstrip())
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=number, rate=self.rate())

    def message(self, text: str) -> None:
        """A line between iterations: an evaluation, an alarm, a checkpoint."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._progress = self._task = None

    def rate(self) -> str:
        """Speed of the last iterations and what is left at that speed, e.g. "2.2 s/it, 1:06 left".

        A stage's first iteration compiles: it counts only until there is another, and what it says is "at most".
        """
        (then, before), (now, done) = self._ticks[0], self._ticks[-1]
        if done <= before or now <= then:
            return ""
        seconds = (now - then) / (done - before)
        speed = f"{seconds:.1f} s/it" if seconds >= 1 else f"{1 / seconds:.1f} it/s"
        bound = "at most " if self._compiling and done < self._total else ""
        return f"{speed}, {bound}{duration(seconds * max(self._total - done, 0))} left"

    def _line(self, number: int, metrics: Mapping[str, float], note: str) -> str:
        columns = ROLLED_OUT if "rollout/success" in metrics else SUPERVISED
        shown: Sequence[str] = [
            f"{label} {form.format(value)}"
            for name, (label, form) in columns.items()
            if (value := lookup(metrics, name)) is not None
        ]
        return "  ".join([f"{self._name} {number}/{self._total}", *shown, *([note] if note else [])])


def duration(seconds: float) -> str:
    """75 -> "1:15", 3675 -> "1:01:15"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
