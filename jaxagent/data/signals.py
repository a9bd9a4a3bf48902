"""Where a policy is weak: the signals that new tasks are written from (CoEvolve, arXiv 2604.15840).

    forgetting   the mean outcome of a task is below `success_at`, and was not in one of its last `window` groups
    boundary     some rollouts of a group succeed and some fail
    rare         an action that was used, by less than `rare_percent` of all uses

In: a task's earlier scores and its group, and how often every action was used. Out: signals, what matters most first.
Writing tasks from them is not the job of this file. Without a signal there is nothing to write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from jaxagent.credit.group import survivors
from jaxagent.errors import ConfigError
from jaxagent.rewards.outcome import success
from jaxagent.stage import Reward
from jaxagent.types import Group

Kind = Literal["forgetting", "boundary", "rare"]
PRIORITY: tuple[Kind, ...] = ("forgetting", "boundary", "rare")


@dataclass(frozen=True)
class Signal:
    """about: a task's id, or the action that is rare."""

    kind: Kind
    about: str


@dataclass(frozen=True)
class SignalRules:
    """outcome: in [0, 1], never a shaped return. rare_from: uses of all actions before one of them can be rare."""

    outcome: Reward = success
    window: int = 5
    success_at: float = 0.5
    rare_percent: float = 1.0
    rare_from: int = 1000

    def __post_init__(self) -> None:
        if self.window < 1 or not 0 < self.success_at <= 1 or not 0 <= self.rare_percent <= 100:
            raise ConfigError(
                f"signals: window={self.window}, success_at={self.success_at}, rare_percent={self.rare_percent}; "
                "expected a window of 1 or more, a score in (0, 1] and a share in percent"
            )


def forgotten(history: Sequence[float], now: float, *, window: int = 5, success_at: float = 0.5) -> bool:
    """Below `success_at` now, and not below it in one of the last `window` scores, which do not hold `now`."""
    return now < success_at and any(score >= success_at for score in history[-window:])


def at_the_boundary(outcomes: Sequence[float], *, success_at: float = 0.5) -> bool:
    """Whether a group holds both successes and failures."""
    solved = [outcome >= success_at for outcome in outcomes]
    return any(solved) and not all(solved)


def rare(uses: Mapping[str, int], *, percent: float = 1.0, least: int = 1000) -> list[str]:
    """Actions with 0 < uses / all uses < percent / 100, in order; none before there are `least` uses.

    login 600, search 390, rate_song 9, delete 1 -> rate_song (.9 %) and delete (.1 %).
    """
    total = sum(uses.values())
    if total < max(1, least):
        return []
    return [action for action, count in uses.items() if 0 < count < total * percent / 100]


def signals(
    groups: Sequence[Group],
    history: Mapping[str, Sequence[float]],
    uses: Mapping[str, int],
    rules: SignalRules,
) -> list[Signal]:
    """An iteration's signals by priority. history: scores of a task's earlier groups. uses: of all actions so far."""
    found: list[Signal] = []
    for group in groups:
        outcomes = [float(rules.outcome(trajectory)) for trajectory in survivors(group)]
        if not outcomes:
            continue
        task, now = group.task.task_id, float(np.mean(outcomes))
        if forgotten(history.get(task, ()), now, window=rules.window, success_at=rules.success_at):
            found.append(Signal("forgetting", task))
        if at_the_boundary(outcomes, success_at=rules.success_at):
            found.append(Signal("boundary", task))
    found += [
        Signal("rare", action) for action in rare(uses, percent=rules.rare_percent, least=rules.rare_from)
    ]
    return sorted(found, key=lambda signal: PRIORITY.index(signal.kind))
