"""Which alarms watch a run, at which thresholds, and what a collapse does: the section `alarms` of a run file."""

from __future__ import annotations

import difflib
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from jaxagent.records import Record


class AlarmThresholds(Record):
    """One number an alarm (monitors/rules.py says of what); `off` or null switches it off.

    length_explosion, turns_explosion, entropy_collapse: multiples of the value at the stage's start. reward_collapse:
    of the best mean return. grad_norm: standard deviations. reward_hacking: evaluations (eval.every) that it takes.
    """

    no_reward: float | None = 0.0
    length_limit: float | None = 0.3
    truncation: float | None = 0.3
    length_explosion: float | None = 2.0
    turns_explosion: float | None = 2.0
    mask_leak: float | None = 0.0
    mask_mismatch: float | None = 1.0
    entropy_collapse: float | None = 0.1
    kl: float | None = 0.1
    reference_kl: float | None = 0.1
    mismatch: float | None = 0.1
    clip: float | None = 0.3
    skipped: float | None = 0.0
    nonfinite: float | None = 0.0
    empty_batch: float | None = 0.0
    equal_rewards: float | None = 0.999
    zero_variance: float | None = 0.7
    singletons: float | None = 0.5
    failed_steps: float | None = 0.9
    tool_collapse: float | None = 0.2
    unknown_tools: float | None = 0.1
    loops: float | None = 3.0
    shaping_share: float | None = 0.5
    judge_gap: float | None = 0.3
    grad_norm: float | None = Field(default=5.0, gt=0)
    reward_hacking: int | None = Field(default=5, ge=3)
    reward_collapse: float | None = Field(default=0.5, gt=0, lt=1)

    @field_validator("*", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        if value is True:
            raise ValueError("an alarm is on by default; give its threshold, or leave it out")
        return None if value is False or value == "off" else value


class RollbackConfig(Record):
    """What changes when a run goes back to its last good checkpoint; with nothing changed it would collapse again.

    limit:         rollbacks in a run; after them a collapse stops it.
    learning_rate: factor on the stage's learning rate, for each rollback in it.
    reseed:        sample the episodes from other random streams. The tasks come in the same order.
    margin:        iterations before the alarm began that are not trusted either.
    """

    limit: int = Field(default=2, ge=1)
    learning_rate: float = Field(default=0.5, gt=0, le=1)
    reseed: bool = True
    margin: int = Field(default=5, ge=0)

    @model_validator(mode="after")
    def _changes(self) -> RollbackConfig:
        if self.learning_rate == 1 and not self.reseed:
            raise ValueError(
                "learning_rate=1 and reseed=false change nothing: the run would collapse again, bit for bit; "
                "lower learning_rate or set reseed: true"
            )
        return self


class AlarmConfig(Record):
    """Alarms are words on the console, in the report and in result.json. `on_collapse`: what else happens when one of
    `collapse` has sounded for `patience` iterations: "stop" ends the run (exit code 5), "rollback" goes back.
    """

    thresholds: AlarmThresholds = AlarmThresholds()
    on_collapse: Literal["warn", "stop", "rollback"] = "warn"
    collapse: tuple[str, ...] = (
        "entropy_collapse",
        "length_explosion",
        "reward_collapse",
        "skipped",
        "nonfinite",
    )
    patience: int = Field(default=3, ge=1)
    rollback: RollbackConfig = RollbackConfig()

    @model_validator(mode="after")
    def _known(self) -> AlarmConfig:
        known = list(AlarmThresholds.model_fields)
        for name in self.collapse:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
                raise ValueError(f"collapse names the alarm {name!r}, which does not exist; {hint}")
            if getattr(self.thresholds, name) is None and self.on_collapse != "warn":
                raise ValueError(
                    f"collapse names the alarm {name!r}, which is off in thresholds; drop it from one of them"
                )
        return self
