"""What a history of numbers shows: an outlier, a fall, two curves that part. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

LEAST = 8  # gradient norms before one can be an outlier
WINDOW = 5  # iterations that a mean return is taken over
SOLVED = 0.95  # a success rate that need not rise


def outlier(past: Sequence[float], value: float, *, sigmas: float) -> float | None:
    """The mean of `past` if `value` lies more than so many standard deviations above it; None if not.

    A spread below 5 % of the mean counts as that: equal norms would otherwise make every next one an outlier.
    """
    if len(past) < LEAST:
        return None
    mean = sum(past) / len(past)
    std = math.sqrt(sum((x - mean) ** 2 for x in past) / len(past))
    return mean if value > mean + sigmas * max(std, 0.05 * mean) else None


def fallen(mean: float, best: float, *, share: float) -> bool:
    """Whether a mean return is below `share` of the best one (which must be above 0) by more than 0.05 of noise."""
    return best > 0 and mean < share * best and best - mean > 0.05


def parted(reward_X: Sequence[float], success_X: Sequence[float]) -> bool:
    """Reward hacking: the return in training rises while held-out success does not.

    Both are fitted by a line. The return rises if its line gains more than the points scatter about it; success is
    flat or falls if its line gains less than a point of a hundred, and it is not solved anyway.
    """
    gain, scatter = _line(reward_X)
    success_gain, _ = _line(success_X)
    return gain > max(scatter, 1e-6) and success_gain < 0.01 and float(np.mean(success_X)) < SOLVED


def _line(value_X: Sequence[float]) -> tuple[float, float]:
    """What the fitted line gains from the first value to the last, and the values' scatter about it (RMS)."""
    x_X, y_X = np.arange(len(value_X), dtype=np.float64), np.array(value_X, np.float64)
    slope, start = np.polyfit(x_X, y_X, 1)
    return float(slope * (len(value_X) - 1)), float(np.sqrt(((y_X - start - slope * x_X) ** 2).mean()))
