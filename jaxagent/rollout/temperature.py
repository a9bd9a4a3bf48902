"""Exploration by temperature: hot at first, cooler later. The trainer's log-probs follow it (Stage.temperature)."""

from __future__ import annotations

from collections.abc import Callable


def linear(start: float, end: float, iterations: int) -> Callable[[int], float]:
    """iteration -> temperature, from `start` to `end` over so many iterations, then `end`.

    1.2 to 0.7 over 100:  0 -> 1.2, 50 -> 0.95, 100 -> 0.7, 200 -> 0.7
    """

    def at(iteration: int) -> float:
        return start + (end - start) * min(iteration / iterations, 1.0)

    return at
