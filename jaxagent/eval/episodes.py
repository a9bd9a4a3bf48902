"""A finished episode as one JSON object, and back: what an evaluation keeps of it.

Texts, actions, statuses, the verdict, token counts and seconds survive; token ids and log-probs do not, a checksum of
the sampled ids stands for them. Metrics are always computed from what was read back, so that an evaluation that was
stopped and one that was not give the same numbers.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from jaxagent.envs.wire import decode_evaluation, encode
from jaxagent.eval.usage import usage
from jaxagent.types import (
    Action,
    ExecStatus,
    Message,
    Prompt,
    Status,
    Step,
    Stop,
    Task,
    ToolCall,
    Trajectory,
)

EpisodeRecord = dict[str, Any]
SECONDS = ("env_s", "generate_s")


def episode_record(trajectory: Trajectory) -> EpisodeRecord:
    """JSON-ready fields. "digest" is a checksum of every sampled token, or of the texts where there are no tokens."""
    counts = usage(trajectory)
    return {
        "task": trajectory.task.task_id,
        "rollout": trajectory.rollout,
        "status": trajectory.status.value,
        "evaluation": encode(trajectory.evaluation),
        "usage": None if counts is None else {name: list(value) for name, value in asdict(counts).items()},
        "digest": digest(trajectory),
        **{name: round(float(trajectory.extra.get(name, 0.0)), 4) for name in SECONDS},
        "prompt": [_message(message) for message in trajectory.prompt.messages],
        "tools": [dict(tool) for tool in trajectory.prompt.tools],
        "steps": [_step(step) for step in trajectory.steps],
    }


def episode_of(record: Mapping[str, Any], task: Task) -> Trajectory:
    """The episode, without token ids."""
    evaluation = record["evaluation"]
    return Trajectory(
        traj_id=f"{task.task_id}:{record['rollout']}",
        task=task,
        rollout=record["rollout"],
        status=Status(record["status"]),
        prompt=Prompt(tuple(_read_message(m) for m in record["prompt"]), tuple(record["tools"])),
        steps=tuple(_read_step(k, fields) for k, fields in enumerate(record["steps"])),
        segments=(),
        evaluation=None if evaluation["record"] == "none" else decode_evaluation(evaluation),
        extra={"usage": record["usage"], **{name: record[name] for name in SECONDS}},
    )


def digest(trajectory: Trajectory) -> int:
    """CRC-32 over what was said, in order."""
    total = 0
    for step in trajectory.steps:
        said = step.ids_T.astype("<i4").tobytes() if step.ids_T.size else step.text.encode("utf-8", "replace")
        total = zlib.crc32(said, total)
    return total


def _message(message: Message) -> dict[str, Any]:
    return {"role": message.role, "content": message.content} | (
        {"tool_calls": [[call.name, dict(call.arguments)] for call in message.tool_calls]}
        if message.tool_calls
        else {}
    )


def _read_message(fields: Mapping[str, Any]) -> Message:
    calls = tuple(ToolCall(name, arguments) for name, arguments in fields.get("tool_calls", ()))
    return Message(fields["role"], fields["content"], tool_calls=calls)


def _step(step: Step) -> dict[str, Any]:
    return {
        "before": step.observation_before,
        "text": step.text,
        "stop": step.stop.value,
        "action": {
            "text": step.action.text,
            "tool_calls": [[call.name, dict(call.arguments)] for call in step.action.tool_calls],
            "error": step.action.error,
        },
        "exec_status": step.exec_status.value,
        "after": step.observation_after,
        "reward": step.reward,
        "anchor": step.anchor,
    }


def _read_step(k: int, fields: Mapping[str, Any]) -> Step:
    action = fields["action"]
    return Step(
        k=k,
        observation_before=fields["before"],
        text=fields["text"],
        ids_T=np.zeros(0, np.int32),
        logprob_T=np.zeros(0, np.float32),
        version=0,
        stop=Stop(fields["stop"]),
        action=Action(
            text=action["text"],
            tool_calls=tuple(ToolCall(name, arguments) for name, arguments in action["tool_calls"]),
            error=action["error"],
        ),
        exec_status=ExecStatus(fields["exec_status"]),
        observation_after=fields["after"],
        reward=fields["reward"],
        anchor=fields["anchor"],
    )
