"""A source of ready groups (demonstrations), in seeded epochs. Nothing is rolled out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxagent.data.tasks import Epochs, fingerprint
from jaxagent.errors import ConfigError
from jaxagent.types import Group, Metrics


class DemoSource:
    """Hands out `groups` groups an iteration, every group once an epoch."""

    def __init__(self, demonstrations: Sequence[Group], *, groups: int, seed: int = 0):
        if not any(group.trajectories for group in demonstrations):
            raise ConfigError("there are no demonstrations; check the file or the expert that makes them")
        if groups < 1:
            raise ConfigError(f"groups={groups} an iteration; expected 1 or more")
        self._demonstrations = tuple(group for group in demonstrations if group.trajectories)
        self._groups = groups
        names = [trajectory.traj_id for group in self._demonstrations for trajectory in group.trajectories]
        self._epochs = Epochs(len(self._demonstrations), seed=seed, fingerprint=fingerprint(names))

    def next(self, iteration: int) -> list[Group]:
        return [self._demonstrations[i] for i in self._epochs.take(self._groups)]

    def observe(self, groups: Sequence[Group]) -> Metrics:
        return {"data/epoch": self._epochs.epoch + self._epochs.position / len(self._demonstrations)}

    def state(self) -> Mapping[str, Any]:
        return self._epochs.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._epochs.restore(state)

    def close(self) -> None:
        """Nothing is held."""
