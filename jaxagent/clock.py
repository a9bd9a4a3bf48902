"""Where the wall time of a run goes: every second once, under one name.

`Clock.lap(name)` gives `name` all the time since the lap before, so that the laps of a run add up to its wall time.
What happened inside a lap divides it; `seconds/collect/decode` lies within `seconds/collect`:

    compilation   jax traced, lowered or compiled (compilations.py)
    decode        the decoder's thread was in a tick: prefill, decode, copies and their scheduling; other threads may
                  have worked meanwhile
    environments  no tick was running and at least one call to an environment was open: what waiting for
                  environments really cost. Their work during a tick costs no wall time; it is in `rollout/env_s`
    python        the rest of a lap in which episodes ran: rendering, parsing, bookkeeping on the event loop
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping

DECODE, ENVIRONMENTS, COMPILATION, PYTHON = "decode", "environments", "compilation", "python"
Now = Callable[[], float]
Counters = Callable[[], Mapping[str, float]]  # seconds so far, by name; never falling

# Laps that wait for episodes. Those that run ahead are played in other laps too, and cost them no wall time.
PLAYED = ("collect", "evaluation")

_PREFIX, _TOTAL = "seconds/", "seconds/total"


class Meter:
    """Seconds by what was going on, from any thread. A moment counts once: for the first of `kinds` that is active."""

    def __init__(self, *kinds: str, now: Now = time.perf_counter):
        self._now, self._last = now, now()
        self._seconds = dict.fromkeys(kinds, 0.0)
        self._active: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def during(self, kind: str) -> Iterator[None]:
        self._change(kind, 1)
        try:
            yield
        finally:
            self._change(kind, -1)

    def seconds(self) -> dict[str, float]:
        """So far, what is still going on included."""
        with self._lock:
            self._advance()
            return dict(self._seconds)

    def _change(self, kind: str, by: int) -> None:
        with self._lock:
            self._advance()
            self._active[kind] += by

    def _advance(self) -> None:
        now = self._now()
        doing = next((kind for kind in self._seconds if self._active[kind]), None)
        if doing is not None:
            self._seconds[doing] += now - self._last
        self._last = now


class Clock:
    """Starts with its construction. `spent` holds what was taken, by stage and part; it adds up to the whole run."""

    def __init__(self, now: Now = time.perf_counter):
        self._now, self._last = now, now()
        self._laps: dict[str, float] = defaultdict(float)
        self._counters: Counters = dict
        self._before: Mapping[str, float] = {}
        self.spent: dict[str, dict[str, float]] = {}

    def divide(self, counters: Counters) -> None:
        """Divide laps by these counters from now on."""
        self._counters, self._before = counters, counters()

    def lap(self, name: str) -> None:
        now, counts = self._now(), self._counters()
        inside = {kind: seconds - self._before.get(kind, 0.0) for kind, seconds in counts.items()}
        if name not in PLAYED:
            inside.pop(DECODE, None)
        for path, seconds in divided(name, now - self._last, inside).items():
            self._laps[_PREFIX + path] += seconds
        self._last, self._before = now, counts

    def take(self, stage: str) -> dict[str, float]:
        """The laps since the last take as metrics, `seconds/total` among them; they are spent for `stage`."""
        taken = {name: seconds for name, seconds in self._laps.items() if seconds}
        self._laps.clear()
        self._add(stage, own_seconds(taken))
        return {**taken, _TOTAL: sum(seconds for name, seconds in taken.items() if name.count("/") == 1)}

    def resume(self, spent: Mapping[str, Mapping[str, float]]) -> None:
        """Add what earlier processes of the run spent."""
        here, self.spent = self.spent, {}
        for parts in (spent, here):
            for stage, seconds in parts.items():
                self._add(stage, seconds)

    @property
    def total(self) -> float:
        return sum(sum(parts.values()) for parts in self.spent.values())

    def _add(self, stage: str, parts: Mapping[str, float]) -> None:
        spent = self.spent.setdefault(stage, {})
        for part, seconds in parts.items():
            spent[part] = spent.get(part, 0.0) + seconds


def divided(name: str, seconds: float, inside: Mapping[str, float]) -> dict[str, float]:
    """A lap and its divisions, by path. In a lap with ticks of the decoder, what was compiled was compiled in one."""
    decode, compilation = inside.get(DECODE, 0.0), inside.get(COMPILATION, 0.0)
    if not decode:
        return {name: seconds, f"{name}/{COMPILATION}": compilation}
    environments = inside.get(ENVIRONMENTS, 0.0)
    return {
        name: seconds,
        f"{name}/{DECODE}": decode,
        f"{name}/{DECODE}/{COMPILATION}": compilation,
        f"{name}/{ENVIRONMENTS}": environments,
        f"{name}/{PYTHON}": seconds - decode - environments,
    }


def own_seconds(metrics: Mapping[str, object]) -> dict[str, float]:
    """Seconds by part, without those of its divisions; a division goes by its own name, wherever it occurs.

    collect 5, collect/decode 3, update 4, update/compilation 1 -> decode 3, collect 2, update 3, compilation 1
    """
    whole = {
        key.removeprefix(_PREFIX): float(value)
        for key, value in metrics.items()
        if key.startswith(_PREFIX) and key != _TOTAL and isinstance(value, int | float)
    }
    own: dict[str, float] = defaultdict(float)
    for path, seconds in whole.items():
        inside = sum(value for other, value in whole.items() if other.rpartition("/")[0] == path)
        own[path.rpartition("/")[2]] += max(0.0, seconds - inside)
    return dict(own)
