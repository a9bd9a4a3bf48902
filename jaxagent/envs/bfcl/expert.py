"""The oracle: the ground truth's calls of each turn in one message, then a plain message that ends the turn."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from jaxagent.envs.bfcl.calls import Format, write_hermes, write_python
from jaxagent.envs.bfcl.data import find
from jaxagent.types import Task, ToolCall

DONE, CANNOT = "I have done that.", "I cannot do that with what I have."


class Expert:
    """At each message with calls it errs with probability `sloppiness`: drops a call, or writes one that is none."""

    def __init__(self, task: Task, rng: Random, sloppiness: float, *, format: Format = "hermes"):
        self.rng, self.sloppiness = rng, sloppiness
        self._write = write_hermes if format == "hermes" else write_python
        self._messages = iter([text for calls in find(task).expected for text in self._turn(calls)])

    def act(self, observation: str) -> str:
        return next(self._messages)

    def _turn(self, calls: Sequence[ToolCall]) -> list[str]:
        if not calls:
            return [CANNOT]
        if self.rng.random() >= self.sloppiness:
            return [self._write(calls), DONE]
        if self.rng.random() < 0.3:
            return [self._write(calls)[:-3]]  # unreadable, so the turn is over
        dropped = self.rng.choice(calls)
        kept = [call for call in calls if call is not dropped]
        return [self._write(kept), DONE] if kept else [DONE]
