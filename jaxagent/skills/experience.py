"""Experiences in words: when they are of use, and what to do or to avoid. AgentEvolver's self-navigating (2511.10395).

In: episodes of one task, successes and failures, plain ones. Out: experiences (role `ae.experience`), kept in a pool;
for a request, those that are most like it as one block of text between <EXP> and </EXP>. Who is guided by it:
skills/guided.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from jaxagent.auxlm.client import AuxRequest
from jaxagent.auxlm.role import Role
from jaxagent.errors import ConfigError, DataError
from jaxagent.skills.mine import script_mine
from jaxagent.skills.retrieve import Likeness, top_k
from jaxagent.types import ExecStatus


@dataclass(frozen=True)
class Experience:
    """tasks: those whose episodes it was read from."""

    when_to_use: str
    content: str
    task: str = ""


class ExperiencePool:
    """Owns the experiences, oldest first; beyond `capacity` the oldest go."""

    def __init__(self, capacity: int = 1024):
        if capacity < 1:
            raise ConfigError(f"a pool of {capacity} experiences; expected room for 1 or more")
        self.capacity = capacity
        self._experiences: list[Experience] = []

    def __len__(self) -> int:
        return len(self._experiences)

    def add(self, experience: Experience) -> bool:
        """False if the pool holds the same words."""
        words = (experience.when_to_use, experience.content)
        if any((known.when_to_use, known.content) == words for known in self._experiences):
            return False
        self._experiences = [*self._experiences, experience][-self.capacity :]
        return True

    def retrieve(self, request: str, likeness: Likeness, *, k: int, floor: float) -> list[Experience]:
        """The k whose `when_to_use` is most like the request and reaches the floor, best first."""
        if not request.strip() or not self._experiences:
            return []
        likeness_N = likeness(request, [experience.when_to_use for experience in self._experiences])
        return [self._experiences[i] for i in top_k(likeness_N, k, floor=floor)]

    def state(self) -> list[dict[str, str]]:
        """JSON-serialisable; `restore(state())` gives an equal pool."""
        return [asdict(experience) for experience in self._experiences]

    def restore(self, state: Sequence[Mapping[str, str]]) -> None:
        try:
            self._experiences = [Experience(**entry) for entry in state]
        except TypeError as error:
            raise DataError(f"the saved experiences are damaged or of another version: {error}") from error


def guidance(experiences: Sequence[Experience], *, max_chars: int) -> str:
    """The block that a guided rollout opens with; a longer text is cut at its end, never its tags."""
    text = "\n".join(f"When {one.when_to_use}:\n{one.content}" for one in experiences)
    return f"<EXP>\n{text[:max_chars]}\n</EXP>"


class WrittenExperience(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    when_to_use: str
    content: str

    @field_validator("when_to_use", "content")
    @classmethod
    def _has_words(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("must not be empty")
        return value.strip()


class WrittenExperiences(BaseModel):
    """The answer's schema."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    experiences: list[WrittenExperience]


EXPERIENCE = Role(
    name="ae.experience",
    record=WrittenExperiences,
    instruction=(
        "You study episodes of an agent at one task, some solved and some not. Write what would help with tasks of the "
        "same kind: what works, and what to avoid. Each experience has when_to_use (one sentence, in words that a task "
        "would use) and content (what to do or to avoid, without names, numbers and ids of these episodes)."
    ),
)


def script_experience(request: AuxRequest) -> str:
    """Script of the role: the workflow of every success (as `script_mine` writes it), the first error of a failure."""
    episodes = request.payload["episodes"]
    solved = [episode for episode in episodes if episode["solved"]]
    mined = json.loads(script_mine(AuxRequest("", {"episodes": solved}, (), 0)))["skills"]
    found = [{"when_to_use": skill["condition"], "content": skill["strategy"]} for skill in mined]
    for episode in episodes:
        wrong = [step for step in episode["steps"] if step["status"] not in (ExecStatus.OK, ExecStatus.NONE)]
        if wrong and not episode["solved"] and wrong[0]["action"].strip() and episode["request"].strip():
            avoid = {"when_to_use": episode["request"], "content": f"Avoid: {wrong[0]['action']}"}
            found.append(avoid)
    return json.dumps({"experiences": found})


def payload_of(episodes: Sequence[tuple[Mapping[str, Any], bool]]) -> dict[str, Any]:
    """What the role reads: records of episodes (skills/mine.py), and whether each was solved."""
    return {"episodes": [{**record, "solved": solved} for record, solved in episodes]}
