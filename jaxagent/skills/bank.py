"""The skill bank: per-task buffers of short lessons, with what each was worth. Skill-SD, arXiv 2604.10674.

A skill holds analyses and a workflow, never a trajectory. Its value is the running mean of the mean group
return obtained while it was the teacher's skill. Not its job: choosing a skill (skills/retrieve.py),
writing one (skills/summarise.py), showing one to a model (skills/prompt.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from jaxagent.errors import ConfigError, DataError


@dataclass(frozen=True)
class Skill:
    """One lesson. `mean_return` is meaningless while `retrievals` is 0."""

    skill_id: str
    success: bool
    success_analysis: str = ""
    mistake_analysis: str = ""
    golden_workflow: tuple[str, ...] = ()
    mean_return: float = 0.0
    retrievals: int = 0

    @property
    def content(self) -> tuple[Any, ...]:
        return self.success_analysis, self.mistake_analysis, self.golden_workflow


@dataclass
class Buffer:
    """One task's skills, oldest first. `retrievals` is N of UCB; it counts evicted skills too."""

    skills: list[Skill] = field(default_factory=list)
    retrievals: int = 0


class SkillBank:
    """Owns the buffers. Keys are task ids, or whatever scope the recipe groups tasks by."""

    def __init__(self, capacity: int = 16):
        if capacity < 1:
            raise ConfigError(f"skill.buffer_max={capacity}: a buffer needs room for 1 skill or more")
        self.capacity = capacity
        self._buffers: dict[str, Buffer] = {}
        self._created = 0

    def skills(self, key: str) -> Sequence[Skill]:
        return tuple(self._buffers[key].skills) if key in self._buffers else ()

    def retrievals(self, key: str) -> int:
        return self._buffers[key].retrievals if key in self._buffers else 0

    def __len__(self) -> int:
        return sum(len(buffer.skills) for buffer in self._buffers.values())

    def add(self, key: str, skill: Skill) -> bool:
        """Store a skill under a fresh id; False if the buffer holds its content already.

        A full buffer first loses the tried skill of lowest mean return (the oldest of equals), or its oldest
        skill if none was tried.
        """
        buffer = self._buffers.setdefault(key, Buffer())
        if any(known.content == skill.content for known in buffer.skills):
            return False
        while len(buffer.skills) >= self.capacity:
            tried = [known for known in buffer.skills if known.retrievals]
            lost = min(tried, key=lambda known: known.mean_return) if tried else buffer.skills[0]
            buffer.skills.remove(lost)
        buffer.skills.append(replace(skill, skill_id=f"s{self._created}"))
        self._created += 1
        return True

    def credit(self, key: str, skill_id: str, group_return: float) -> None:
        """Count one retrieval and fold the group's mean return in: r <- (n r + R) / (n + 1).

        A skill that was evicted since it was picked counts in the buffer's total alone.
        """
        buffer = self._buffers[key]
        buffer.retrievals += 1
        for index, skill in enumerate(buffer.skills):
            if skill.skill_id == skill_id:
                n = skill.retrievals
                mean = (n * skill.mean_return + group_return) / (n + 1)
                buffer.skills[index] = replace(skill, mean_return=mean, retrievals=n + 1)

    def state(self) -> dict[str, Any]:
        """JSON-serialisable; `restore(state())` gives an equal bank."""
        buffers = {
            key: {"retrievals": buffer.retrievals, "skills": [asdict(skill) for skill in buffer.skills]}
            for key, buffer in self._buffers.items()
        }
        return {"created": self._created, "buffers": buffers}

    def restore(self, state: Mapping[str, Any]) -> None:
        try:
            buffers = {
                key: Buffer([_skill(entry) for entry in saved["skills"]], int(saved["retrievals"]))
                for key, saved in state["buffers"].items()
            }
            created = int(state["created"])
        except (KeyError, TypeError) as error:
            raise DataError(f"the saved skill bank is damaged or of another version: {error!r}") from error
        self._buffers, self._created = buffers, created


def _skill(entry: Mapping[str, Any]) -> Skill:
    return Skill(**{**entry, "golden_workflow": tuple(entry["golden_workflow"])})
