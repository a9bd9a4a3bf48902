"""The options of replay; data/replay.py says what they do."""

from __future__ import annotations

from pydantic import Field, model_validator

from jaxagent.data.replay import Priority
from jaxagent.recipes.unread import refuse_unread
from jaxagent.records import Record


class ReplayOptions(Record):
    """Train on earlier trajectories again beside the new ones.

    capacity: trajectories kept; the oldest leave first. fraction: share of replayed ones in an update.
    priority: "advantage" (the largest |A| of a step), "return" (R, where it is positive), or "uniform" (plain FIFO).
    alpha: how much the priority counts; 0 is uniform. beta: how much the weights undo that, rising to 1.
    max_lag: iterations after which a trajectory leaves.
    """

    capacity: int = Field(1024, ge=1)
    fraction: float = Field(0.25, gt=0, lt=1)
    priority: Priority = "advantage"
    alpha: float = Field(0.6, ge=0)
    beta: float = Field(0.4, ge=0, le=1)
    max_lag: int = Field(8, ge=1)

    @model_validator(mode="after")
    def _weighs(self) -> ReplayOptions:
        refuse_unread(
            self, "alpha", "beta", read=self.priority != "uniform", when="priority advantage or return"
        )
        return self
