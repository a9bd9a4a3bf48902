"""Confidence intervals over tasks. Rollouts of one task are not independent, so a task is one observation."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from jaxtyping import Float

LEVEL = 0.95


def wilson(successes: float | int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Wilson score interval of a share. 0 of n and n of n keep a width, unlike a bootstrap's. n = 0: (0, 1)."""
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share = successes / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))


def bootstrap(
    value_P: Float[np.ndarray, "P"], level: float = LEVEL, *, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the mean over P tasks, drawn with a fixed seed: the same values give the same one."""
    rng, n = np.random.default_rng(seed), value_P.size
    means = np.concatenate(
        [value_P[rng.integers(0, n, (rows, n))].mean(axis=1) for rows in blocks(resamples, n)]
    )
    low, high = np.quantile(means, [0.5 - level / 2, 0.5 + level / 2])
    return float(low), float(high)


def blocks(rows: int, width: int, most: int = 1 << 22) -> list[int]:
    """Numbers of rows that add up to `rows`, each block of at most `most` values: benchmarks have 50,000 tasks."""
    size = max(1, most // width)
    return [min(size, rows - start) for start in range(0, rows, size)]


def interval(value_P: Float[np.ndarray, "P"], level: float = LEVEL) -> tuple[float, float]:
    """Interval of the mean of values in [0, 1]: Wilson where every value is 0 or 1, bootstrap otherwise."""
    if np.isin(value_P, (0, 1)).all():
        return wilson(float(value_P.sum()), value_P.size, level)
    return bootstrap(value_P, level)
