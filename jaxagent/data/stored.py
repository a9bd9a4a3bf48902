"""A source of rollouts that were stored: the same episodes again, for another method. No episode is played.

Groups come whole, in seeded epochs over the store. Of their log-probs only the sampler's own are handed on: the old
ones belonged to a policy of that time, and the trainer scores them anew under the parameters it has now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxagent.data.rollout_store import Origin, RolloutStore
from jaxagent.data.tasks import Epochs, fingerprint
from jaxagent.errors import ConfigError, DataError
from jaxagent.rewards.returns import mapped
from jaxagent.types import Group, Metrics, Trajectory

MARK = "position_in_store"  # key of the source's state, by which `reads_a_store` knows it
SAMPLED = "behaviour"  # the one stream that stays true whatever the parameters are


class StoredSource:
    """Implements Source: `groups` stored groups an iteration.

    row: tokens of a training row; scored: those of them that can be trained on, 0 is all. spare: tokens of a row that
    the method needs beside an episode.
    """

    def __init__(
        self, store: RolloutStore, *, groups: int, seed: int, row: int, scored: int = 0, spare: int = 0
    ):
        self._store, self._groups = store, groups
        self._entries = [entry for entry in store.entries if entry.trajectories]
        if not self._entries:
            raise DataError(f"{store.path} holds no trajectory; did its run stop before the first iteration?")
        longest = max(self._entries, key=lambda entry: entry.longest)
        if longest.longest + spare > row:
            more = f", and {spare} more must stand behind it" if spare else ""
            raise DataError(
                f"{store.path}: an episode of task {longest.task!r} has {longest.longest} tokens{more}, a training row "
                f"holds {row}; raise pack.length to at least {longest.longest + spare}"
            )
        most = max(self._entries, key=lambda entry: entry.sampled)
        if scored and most.sampled > scored:
            raise DataError(
                f"{store.path}: in an episode of task {most.task!r} the policy sampled {most.sampled} tokens, a "
                f"training row scores {scored}; raise pack.scored to at least that, or set it to 0"
            )
        names = [f"{entry.iteration}/{entry.task}/{entry.start}" for entry in self._entries]
        self._epochs = Epochs(len(names), seed=seed, fingerprint=fingerprint(names))

    def next(self, iteration: int) -> list[Group]:
        chosen = [self._store.read(self._entries[i]) for i in self._epochs.take(self._groups)]
        return mapped(chosen, as_sampled)

    def observe(self, groups: Sequence[Group]) -> Metrics:
        return {"data/epoch": self._epochs.epoch + self._epochs.position / len(self._entries)}

    def state(self) -> Mapping[str, Any]:
        return {MARK: self._store.path.name, **self._epochs.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._epochs.restore(state)

    def close(self) -> None:
        """Nothing is held: the file is opened for each group."""


def open_store(path: str, origin: Origin | None) -> RolloutStore:
    """The store of a run folder or file. Raises ConfigError if its rollouts mean something else under `origin`."""
    store = RolloutStore(Path(path))
    if origin is not None:
        if store.origin.schedule:
            raise ConfigError(
                f"{store.path} was sampled under a temperature schedule ({store.origin.schedule}): its log-probs are "
                "under another temperature in every iteration. Train on a run of constant temperature"
            )
        store.origin.check(replace(origin, schedule=""), store.path)
    return store


def reads_a_store(state: Any) -> bool:
    """Whether a source's state holds the position in a store, however deep the source is wrapped."""
    if not isinstance(state, Mapping):
        return False
    return MARK in state or any(map(reads_a_store, state.values()))


def as_sampled(trajectory: Trajectory) -> Trajectory:
    """Without the streams that a trainer added."""
    segments = tuple(
        replace(segment, logprobs={name: lp_T for name, lp_T in segment.logprobs.items() if name == SAMPLED})
        for segment in trajectory.segments
    )
    return replace(trajectory, segments=segments)
