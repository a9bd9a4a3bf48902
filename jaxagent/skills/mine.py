"""Successful episodes to condition-strategy skills: role `siri.mine`. In: stored episodes. Out: (condition, strategy).

Who mines: a snapshot of the policy itself (SIRI), an endpoint, or a script where a language model would be too much.
Episodes are kept as short records, cut with marks, never as trajectories.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from jaxagent.auxlm.background import Background
from jaxagent.auxlm.client import AuxRequest
from jaxagent.auxlm.role import Payload, Role
from jaxagent.errors import ConfigError
from jaxagent.rollout.review import plain_prompt
from jaxagent.skills.request import Asked, request_of
from jaxagent.types import ExecStatus, Metrics, Trajectory

SHOWN_STEPS = 40
SHOWN_CHARS = 400
QUOTED = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|(?<![\w.])\d+(?:\.\d+)?(?!\w)")
TOKEN = re.compile(r"\S+")
BLANK = "_"


class MinedSkill(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    condition: str
    strategy: str

    @field_validator("condition", "strategy")
    @classmethod
    def _has_words(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("must not be empty")
        return value.strip()


class MinedSkills(BaseModel):
    """The answer's schema."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    skills: list[MinedSkill]


def check_mined(record: MinedSkills, payload: Payload) -> str:
    most = len(payload["episodes"])
    if len(record.skills) > most:
        return f"{len(record.skills)} skills; give at most {most}, one for each episode"
    return ""


MINE = Role(
    name="siri.mine",
    record=MinedSkills,
    instruction=(
        "You study successful episodes of an agent. Write skills that help with other tasks of the same kind: each has "
        "a condition (one sentence: when it applies, in words that a task would use) and a strategy (the steps that "
        "work, without names, numbers and ids of these episodes). At most one skill for each episode."
    ),
    check=check_mined,
)


def episode_record(trajectory: Trajectory, asked: Asked = request_of) -> dict[str, Any]:
    """What the miner sees of an episode, and what is kept of it: JSON, long texts cut with a mark."""
    return {
        "task": trajectory.task.task_id,
        "request": _cut(asked(plain_prompt(trajectory))),
        "steps": [
            {
                "action": _cut(step.action.text or step.text),
                "status": str(step.exec_status),
                "observation": _cut(step.observation_after),
            }
            for step in trajectory.steps[:SHOWN_STEPS]
        ],
    }


def _cut(text: str) -> str:
    if len(text) <= SHOWN_CHARS:
        return text
    return f"{text[:SHOWN_CHARS]}… [{len(text) - SHOWN_CHARS} characters left out]"


def script_mine(request: AuxRequest) -> str:
    """Script of the role: the steps that ran, with all that belongs to this one task blanked.

    request "pay 12 to mezo", answers "hofu", "ok":
        tok = apis.bank.login(pw="hofu")                            tok = apis.bank.login(pw=_)
        apis.bank.pay(to="mezo", amount=12, tok=tok)        ->      apis.bank.pay(to=_, amount=_, tok=tok)
    condition "pay to": the words of the request that no step uses as a value
    """
    skills = []
    for episode in request.payload["episodes"]:
        steps = [step for step in episode["steps"] if step["status"] == ExecStatus.OK]
        given = {word.strip(".,:;!?") for word in TOKEN.findall(episode["request"])}
        seen = " ".join([episode["request"], *(step["observation"] for step in steps)])
        values = {_bare(literal) for step in steps for literal in QUOTED.findall(step["action"])}
        data = {value for value in values if value and value in seen}
        condition = " ".join(
            word for word in TOKEN.findall(episode["request"]) if word.strip(".,:;!?") not in data & given
        )
        strategy = "\n".join(_blanked(step["action"], data) for step in steps)
        if condition.strip() and strategy.strip():
            skills.append({"condition": condition, "strategy": strategy})
    return json.dumps({"skills": skills})


def _bare(literal: str) -> str:
    return literal.strip("\"'")


def _blanked(action: str, data: set[str]) -> str:
    return QUOTED.sub(lambda found: BLANK if _bare(found[0]) in data else found[0], action)


class Miner:
    """Asks for skills and waits for them. connect: the auxiliary model, once there is one (the policy comes late)."""

    def __init__(self, background: Background | None = None):
        self._background = background

    def connect(self, background: Background) -> None:
        self.close()
        self._background = background

    def mine(
        self, batches: Sequence[Sequence[Mapping[str, Any]]]
    ) -> list[tuple[tuple[str, ...], MinedSkill]]:
        """(tasks of the batch, skill) of every batch that was answered, in order."""
        if self._background is None:
            raise ConfigError("the miner has no model yet: the stage's policy was never handed to it")
        answers = self._background.ask(MINE, [{"episodes": list(batch)} for batch in batches])
        return [
            (tuple(dict.fromkeys(str(episode["task"]) for episode in batch)), skill)
            for batch, answer in zip(batches, answers)
            if answer is not None
            for skill in answer.skills
        ]

    def metrics(self) -> Metrics:
        return {} if self._background is None else self._background.metrics()

    def close(self) -> None:
        if self._background is not None:
            self._background.close()
