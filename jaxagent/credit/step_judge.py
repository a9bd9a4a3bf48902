"""The judge that labels every step of an episode GOOD or BAD: one question a trajectory. In: trajectories. Out: labels.

The episode is material between escaped delimiters (auxlm/role.py): what it says to the judge is not an instruction. Ask
at temperature 0. An answer that is no JSON, holds another word, or another number of labels than the episode has steps,
is asked for again and then counted as a failure; the labels then follow the outcome's sign.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from jaxagent.auxlm.background import Background
from jaxagent.auxlm.client import AuxRequest
from jaxagent.auxlm.role import Payload, Role
from jaxagent.credit.attribution import Labelled, outcome_labels
from jaxagent.rewards.judge import cut
from jaxagent.types import ExecStatus, Trajectory

STEP_CHARS = 1000  # of a message and of an observation: at most 2,000 a step


class Labels(BaseModel):
    """The answer's schema: a label a step, in order."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    labels: list[Literal["GOOD", "BAD"]]


def check_labels(record: Labels, payload: Payload) -> str:
    steps = len(payload["steps"])
    if len(record.labels) != steps:
        return f"labels holds {len(record.labels)} of them, the episode has {steps} steps; give exactly one a step"
    return ""


ATTRIBUTE = Role(
    name="ae.attribute",
    record=Labels,
    instruction=(
        "You judge the steps of one episode of an agent, knowing how it ended. For every step, in order, say GOOD or "
        "BAD. In an episode that succeeded, a step is GOOD if it led to the success; a detour, a repetition or an "
        "error that had to be repaired is BAD. In one that failed, a step is GOOD only if it really brought the "
        "solution nearer; a step that made or sealed the failure is BAD. Judge by what happened, not by what the "
        "agent says about it."
    ),
    check=check_labels,
)


def attribution_payload(trajectory: Trajectory) -> dict[str, Any]:
    """What the judge sees: the request, every step, the outcome. Long texts are cut in the middle, with a mark."""
    asked = [message.content for message in trajectory.prompt.messages if message.role == "user"]
    steps = [
        {
            "number": number,
            "message": cut(step.text, STEP_CHARS),
            "status": str(step.exec_status),
            "observation": cut(step.observation_after, STEP_CHARS),
        }
        for number, step in enumerate(trajectory.steps, 1)
    ]
    return {
        "request": cut("\n".join(asked), 2 * STEP_CHARS),
        "steps": steps,
        "success": trajectory.success,
        "return": trajectory.reward,
        "ended": str(trajectory.status),
    }


class StepJudge:
    """`Labeller` by a language model, or a script. Owns its thread; `close` ends it."""

    def __init__(self, judge: Background):
        self.judge = judge

    def __call__(self, trajectories: Sequence[Trajectory]) -> Labelled:
        with_steps = [trajectory for trajectory in trajectories if trajectory.steps]
        payloads = [attribution_payload(trajectory) for trajectory in with_steps]
        answers = iter(self.judge.ask(ATTRIBUTE, payloads))
        labels, failed = [], []
        for trajectory in trajectories:
            answer = next(answers) if trajectory.steps else Labels(labels=[])
            failed.append(answer is None)
            labels.append(outcome_labels(trajectory) if answer is None else as_numbers(answer))
        return Labelled(tuple(labels), tuple(failed))

    def close(self) -> None:
        self.judge.close()


def as_numbers(record: Labels) -> np.ndarray:
    """GOOD +1, BAD -1."""
    return np.array([1.0 if label == "GOOD" else -1.0 for label in record.labels])


def script_labels(request: AuxRequest) -> str:
    """Script of the role for worlds without a language model: a step that failed to execute is BAD, others GOOD."""
    labels = ["BAD" if ExecStatus(step["status"]).failed else "GOOD" for step in request.payload["steps"]]
    return json.dumps({"labels": labels})
