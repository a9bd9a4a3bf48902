"""Going back after a collapse: to which checkpoint, and what is changed so that the run does not collapse again.

A rollback copies an earlier checkpoint to a new one, with the changes noted in it, and the run goes on from there as if
it had been started again. Iterations are numbered on, so nothing that was recorded is taken back and nothing that was
saved is overwritten: a kill at any moment finds either the state before, whose next iterations sound the same alarm
again, or the state after. Not the job of this file: when (collapse.py), arrays (weights.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from jaxagent.config import CheckpointConfig
from jaxagent.monitors.settings import AlarmConfig
from jaxagent.monitors.trends import WINDOW
from jaxagent.stage import Update


@dataclass(frozen=True)
class Rollback:
    """alarm: why. stage: its index. left, to: the stage's iterations (done so far) before and after.

    step: the checkpoint that was gone back to. saved: the checkpoint that it became; those in between are abandoned.
    """

    alarm: str
    stage: int
    left: int
    to: int
    step: int
    saved: int

    def words(self, config: AlarmConfig, count: int) -> str:
        changes = (
            [f"learning rate x {config.rollback.learning_rate:g}"]
            if config.rollback.learning_rate < 1
            else []
        )
        changes += ["other random streams"] if config.rollback.reseed else []
        return (
            f"{self.alarm}: back from iteration {self.left} to {self.to} (checkpoint {self.step}) with "
            f"{' and '.join(changes)}; rollback {count} of at most {config.rollback.limit}"
        )


def read_rollbacks(saved: Sequence[Mapping[str, Any]]) -> list[Rollback]:
    return [Rollback(**item) for item in saved]


def as_json(rollbacks: Sequence[Rollback]) -> list[dict[str, Any]]:
    return [asdict(item) for item in rollbacks]


def checkpoints_kept(alarms: AlarmConfig, checkpoint: CheckpointConfig) -> int:
    """As many as it takes for one to lie before an alarm, its patience and the margin."""
    if alarms.on_collapse != "rollback":
        return checkpoint.keep
    reach = alarms.rollback.margin + max(alarms.patience, WINDOW)
    return max(checkpoint.keep, 2 + math.ceil(reach / checkpoint.every))


def last_good(
    places: Mapping[int, Sequence[int]], rollbacks: Sequence[Rollback], *, stage: int, since: int, margin: int
) -> int | None:
    """The checkpoint step to go back to, or None. places: step -> (stage, iterations done) of the whole checkpoints.

    Iteration `since` (from 1) ran with the policy of since - 1 iterations, which is already suspect: the newest
    checkpoint of fewer, and of `margin` fewer still if there is one. The stage's start is always good.
    """
    alive = {
        step: place[1]
        for step, place in places.items()
        if place[0] == stage and not any(item.step < step < item.saved for item in rollbacks)
    }
    good = {step: done for step, done in alive.items() if done <= max(since - 2, 0)}
    trusted = [step for step, done in good.items() if done <= max(since - 2 - margin, 0)]
    return max(trusted) if trusted else min(good, default=None)


def changed(update: Update, alarms: AlarmConfig, count: int) -> Update:
    """The stage's update after so many rollbacks in it."""
    factor = alarms.rollback.learning_rate**count
    names = ("learning_rate", "adam_learning_rate", "critic_learning_rate")
    rates = {name: getattr(update, name) for name in names}
    return replace(update, **{name: rate * factor for name, rate in rates.items() if rate is not None})
