"""Trajectories to skills, beside training. In: finished episodes. Out: skills, at the next boundary.

`SummariserPool` hands trajectories to the auxiliary model on a thread of its own while rollout and update
go on; `collect` is called once, at the boundary. Full trajectories are never stored: an answer that does
not fit the schema is dropped and counted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from jaxagent.auxlm.background import Background
from jaxagent.auxlm.client import AuxLM, AuxRequest
from jaxagent.auxlm.role import Payload, Role
from jaxagent.rollout.review import plain_prompt
from jaxagent.skills.bank import Skill
from jaxagent.types import ExecStatus, Metrics, Trajectory

SHOWN_STEPS = 40
SHOWN_CHARS = 1000


class SkillRecord(BaseModel):
    """The answer's schema (Skill-SD)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    success_analysis: str | None
    mistake_analysis: str | None
    golden_workflow: str | list[str]

    @field_validator("success_analysis", "mistake_analysis")
    @classmethod
    def _blank_is_none(cls, value: str | None) -> str | None:
        return value.strip() or None if value else None

    def skill(self, *, success: bool) -> Skill:
        lines = (
            self.golden_workflow.splitlines()
            if isinstance(self.golden_workflow, str)
            else self.golden_workflow
        )
        return Skill(
            skill_id="",
            success=success,
            success_analysis=self.success_analysis or "",
            mistake_analysis=self.mistake_analysis or "",
            golden_workflow=tuple(line for line in lines if line.strip()),
        )


def check_summary(record: SkillRecord, payload: Payload) -> str:
    """A success must be explained, and so must a failure."""
    if payload["success"] and not record.success_analysis:
        return "the episode succeeded, so success_analysis must not be empty"
    if not payload["success"] and not record.mistake_analysis:
        return "the episode failed, so mistake_analysis must not be empty"
    return ""


SUMMARISE = Role(
    name="skill_sd.summarise",
    record=SkillRecord,
    instruction=(
        "You study one episode of an agent that solves tasks by code or tool calls. Write a short lesson "
        "that helps with the same task: success_analysis (what made it work; null if nothing did), "
        "mistake_analysis (what went wrong; null if nothing did), golden_workflow (the shortest list of "
        "steps that solves the task)."
    ),
    check=check_summary,
)


def summary_payload(trajectory: Trajectory) -> dict[str, Any]:
    """What the summariser sees: the request, the steps (long ones cut, with a mark), the outcome.

    An earlier lesson in the prompt is not part of the request.
    """
    steps = [
        {
            "action": _cut(step.action.text or step.text),
            "status": str(step.exec_status),
            "observation": _cut(step.observation_after),
        }
        for step in trajectory.steps[:SHOWN_STEPS]
    ]
    request = [message.content for message in plain_prompt(trajectory).messages if message.role == "user"]
    return {
        "task": {"id": trajectory.task.task_id, "request": _cut(request[-1] if request else "")},
        "steps": steps,
        "steps_left_out": len(trajectory.steps) - len(steps),
        "return": trajectory.reward,
        "success": trajectory.success,
        "ended": str(trajectory.status),
    }


def _cut(text: str) -> str:
    if len(text) <= SHOWN_CHARS:
        return text
    return f"{text[:SHOWN_CHARS]}… [{len(text) - SHOWN_CHARS} characters left out]"


def script_summary(request: AuxRequest) -> str:
    """Script of the role for worlds without a language model: the workflow is the actions that ran, in order.

    Steps x = 1/0 (runtime error), print(x) (ok), done() (ok), solved  ->  workflow [print(x), done()], a
    success analysis, and the first error as the mistake. A failure leaves a mistake and no workflow.
    """
    payload = request.payload
    steps: Sequence[Mapping[str, Any]] = payload["steps"]
    solved = bool(payload["success"])
    worked = [step["action"] for step in steps if solved and step["status"] == ExecStatus.OK]
    failed = [step for step in steps if ExecStatus(step["status"]).failed]
    mistake = None
    if failed:
        lines = failed[0]["observation"].strip().splitlines() or [failed[0]["status"]]
        mistake = f"{failed[0]['action']}\n{lines[-1]}"
    elif not solved:
        mistake = (
            f"Every step ran, but the task was not solved ({payload['ended']}, return {payload['return']:g})."
        )
    success = f"Solved in {len(steps)} steps." if solved else None
    record = {"success_analysis": success, "mistake_analysis": mistake, "golden_workflow": worked}
    return json.dumps(record)


@dataclass(frozen=True)
class Summary:
    """A finished summary: the buffer it belongs to, and the skill, or None if the auxiliary model failed."""

    key: str
    skill: Skill | None


@dataclass(frozen=True, eq=False)
class Pending:
    key: str
    payload: Payload
    future: Future[SkillRecord | None]
    started: float = field(default_factory=time.monotonic)


class SummariserPool:
    """Asks the auxiliary model beside the run, and keeps what is not yet collected.

    patience_s: how long `collect` waits for what is still running. None waits for everything, so that a run
                with a deterministic auxiliary model is deterministic; AuxLM's timeout bounds the wait. With
                a number, late summaries become visible at a later boundary.
    """

    def __init__(self, aux: AuxLM, *, patience_s: float | None = None):
        self.patience_s = patience_s
        self.failures = 0
        self.latency_s = 0.0  # mean over the summaries of the last collect
        self._background = Background(aux)
        self._pending: list[Pending] = []

    def submit(self, key: str, payload: Payload) -> None:
        """Start one summary; `summary_payload` makes the payload."""
        self._pending.append(Pending(key, payload, self._background.submit(SUMMARISE, payload)))

    def collect(self) -> list[Summary]:
        """Finished summaries in the order of submission. Call it at an iteration boundary."""
        wait([pending.future for pending in self._pending], self.patience_s)
        finished = [pending for pending in self._pending if pending.future.done()]
        self._pending = [pending for pending in self._pending if not pending.future.done()]
        summaries = []
        for pending in finished:
            record = pending.future.result()
            self.failures += record is None
            skill = None if record is None else record.skill(success=bool(pending.payload["success"]))
            summaries.append(Summary(pending.key, skill))
        if finished:
            now = time.monotonic()
            self.latency_s = sum(now - pending.started for pending in finished) / len(finished)
        return summaries

    def metrics(self) -> Metrics:
        return {
            "skills/pending": float(len(self._pending)),
            "skills/summary_failures": float(self.failures),
            "skills/summary_latency_s": self.latency_s,
            **self._background.metrics(),
        }

    def state(self) -> list[dict[str, Any]]:
        """What is not yet collected; `restore` asks again."""
        return [{"key": pending.key, "payload": dict(pending.payload)} for pending in self._pending]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        for pending in self._pending:
            pending.future.cancel()
        self._pending = []
        for entry in state:
            self.submit(entry["key"], entry["payload"])

    def close(self) -> None:
        for pending in self._pending:
            pending.future.cancel()
        self._pending = []
        self._background.close()
