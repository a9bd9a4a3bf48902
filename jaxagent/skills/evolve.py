"""New skills for kinds of tasks that fail: role `skillrl.write`. In: a kind's episodes. Out: skills and mistakes."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from jaxagent.auxlm.client import AuxRequest
from jaxagent.auxlm.role import Payload, Role
from jaxagent.skills.mine import script_mine
from jaxagent.types import ExecStatus


class NewSkill(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    title: str
    principle: str
    when_to_apply: str = ""

    @field_validator("title", "principle")
    @classmethod
    def _has_words(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("must not be empty")
        return value


class NewMistake(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    description: str = Field(min_length=1)
    why_it_happens: str = ""
    how_to_avoid: str = ""


class NewSkills(BaseModel):
    """The answer's schema."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    skills: list[NewSkill] = []
    common_mistakes: list[NewMistake] = []


def check_new(record: NewSkills, payload: Payload) -> str:
    if len(record.skills) > payload["most"]:
        return f"{len(record.skills)} skills; give at most {payload['most']}"
    return ""


WRITE = Role(
    name="skillrl.write",
    record=NewSkills,
    instruction=(
        "An agent fails often at one kind of task. Study its episodes (failures, and successes if there are any) and "
        "the titles of the skills that it has. Write what it lacks: skills (a title, a principle that is concise and "
        "can be acted on, when_to_apply in words that a task would use) and common_mistakes (description, "
        "why_it_happens, how_to_avoid), without names and numbers of these episodes. No more skills than `most`."
    ),
    check=check_new,
)


def script_write(request: AuxRequest) -> str:
    """Script of the role: the workflows of the successes (as `script_mine` writes them), the first error of each
    failure as a mistake."""
    payload = request.payload
    mined = json.loads(script_mine(AuxRequest("", {"episodes": payload["successes"]}, (), 0)))["skills"]
    skills: list[dict[str, Any]] = []
    for skill in mined:
        known = [entry["principle"] for entry in skills]
        if skill["strategy"] not in known and len(skills) < payload["most"]:
            title = f"{payload['kind']} {len(skills) + 1}".strip()
            skills.append(
                {"title": title, "principle": skill["strategy"], "when_to_apply": skill["condition"]}
            )
    mistakes = []
    for episode in payload["failures"]:
        bad = [step for step in episode["steps"] if ExecStatus(step["status"]).failed]
        if bad:
            lines = bad[0]["observation"].strip().splitlines() or [bad[0]["status"]]
            mistakes.append(
                {"description": bad[0]["action"] or bad[0]["status"], "why_it_happens": lines[-1]}
            )
    return json.dumps({"skills": skills, "common_mistakes": mistakes[: payload["most"]]})
