"""Which of two continuations is preferred: pairs for preference training.

In: values of continuations of one task or state. Out: indices (chosen, rejected). The loss is learn/preference.py's.

    trajectories    returns of one task that differ by `least`
    Agent-Q         actions at one state of a search tree (arXiv 2408.07199), valued by tree and critic
    self-rewarding  the best and the worst by the model's own score (arXiv 2401.10020)
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxagent.errors import ConfigError

Pair = tuple[int, int]
ROUNDING = 1e-9  # .7 - .5 is .19999999999999996, and means .2


def backed_up(value: float, visits: int, reward: float) -> float:
    """A node's value after one more visit, Q <- (Q N + R) / (N + 1): .5 of 3 visits and a return of 1 -> .625."""
    return (value * visits + reward) / (visits + 1)


def ranked_value(tree: float, critic: float, *, alpha: float = 0.5) -> float:
    """Q = alpha Q_tree + (1 - alpha) Q_critic."""
    if not 0 <= alpha <= 1:
        raise ConfigError(f"alpha={alpha}; expected a share from 0 to 1")
    return alpha * tree + (1 - alpha) * critic


def pairs(values: Sequence[float], *, least: float) -> list[Pair]:
    """Every (better, worse) whose values differ by `least` or more, in order."""
    if least <= 0:
        raise ConfigError(f"least={least}: equal values prefer nothing; expected a number above 0")
    return [
        (i, j)
        for i, better in enumerate(values)
        for j, worse in enumerate(values)
        if better - worse >= least - ROUNDING
    ]


def best_and_worst(scores: Sequence[float]) -> Pair | None:
    """The first of the highest and the first of the lowest: 3, 5, 2, 4 -> (1, 2). None where all are equal."""
    if not scores or max(scores) == min(scores):
        return None
    return scores.index(max(scores)), scores.index(min(scores))
