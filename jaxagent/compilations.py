"""Counts what XLA compiles in this process, and the seconds it takes. A warm persistent cache still counts, briefly."""

from __future__ import annotations

import jax

EVENT = "/jax/core/compile/backend_compile_duration"


class Compilations:
    """Counts from its construction on; `close` ends the counting."""

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0
        jax.monitoring.register_event_duration_secs_listener(self._on)

    def _on(self, name: str, seconds: float, **_: str | int) -> None:
        if name == EVENT:
            self.count += 1
            self.seconds += seconds

    def close(self) -> None:
        jax.monitoring.unregister_event_duration_listener(self._on)
