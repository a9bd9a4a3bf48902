"""Counts what XLA compiles in this process, and the seconds that getting to an executable takes.

Seconds include tracing and lowering, which a warm persistent cache does not save; it still counts, briefly.
"""

from __future__ import annotations

import threading
from collections import defaultdict

import jax

COMPILE = "/jax/core/compile/backend_compile_duration"
SPANS = (COMPILE, "/jax/core/compile/jaxpr_trace_duration", "/jax/core/compile/jaxpr_to_mlir_module_duration")


class Compilations:
    """Counts from its construction on; `close` ends the counting."""

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0
        self._spans: dict[int, list[tuple[float, float]]] = defaultdict(list)
        jax.monitoring.register_event_time_span_listener(self._on)

    def _on(self, event: str, start_time: float, end_time: float, **kwargs: str | int) -> None:
        if event not in SPANS:
            return
        self.count += event == COMPILE
        # A function traced within another one ends first: the outer span replaces it.
        spans = self._spans[threading.get_ident()]
        while spans and spans[-1][0] >= start_time:
            inner_start, inner_end = spans.pop()
            self.seconds -= inner_end - inner_start
        spans.append((start_time, end_time))
        self.seconds += end_time - start_time

    def close(self) -> None:
        jax.monitoring.unregister_event_time_span_listener(self._on)
