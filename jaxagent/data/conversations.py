"""Finished conversations as trajectories: files of demonstrations, and drills. No environment took part in them.

In: messages. Out: a Trajectory in one segment whose steps are the assistant's messages, action mask on their tokens.
A file is JSON Lines, one conversation a line:

    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}], "tools": []}

An assistant's message may say how the environment took it: `"exec_status": "runtime_error"` (types.ExecStatus; "ok"
where it is not said), and may hold `tool_calls` as {"name", "arguments"} or as OpenAI's {"function": {…}}.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from jaxagent.chat.render import Renderer
from jaxagent.errors import DataError
from jaxagent.types import (
    Action,
    ExecStatus,
    Message,
    Prompt,
    Segment,
    Status,
    Step,
    Stop,
    Task,
    ToolCall,
    Trajectory,
)


def conversation(
    messages: Sequence[Message],
    renderer: Renderer,
    *,
    task: Task,
    tools: Sequence[Any] = (),
    statuses: Sequence[ExecStatus] = (),
) -> Trajectory:
    """The trajectory of a finished conversation. Raises DataError if the assistant says nothing in it.

    statuses: one for each message of the assistant; OK for all if none are given.
    """
    ids_T, mask_T = renderer.whole(messages, tools)
    step_T = number_turns(mask_T)
    spoken = [message for message in messages if message.role == "assistant"]
    if len(spoken) != step_T.max(initial=-1) + 1 or not spoken:
        raise DataError(
            f"conversation {task.task_id!r}: {len(spoken)} assistant messages, {step_T.max(initial=-1) + 1} of them "
            "with tokens to learn; every conversation needs at least one and none may be empty"
        )
    turns = enumerate(zip(spoken, statuses or [ExecStatus.OK] * len(spoken), strict=True))
    first = next(i for i, message in enumerate(messages) if message.role == "assistant")
    return Trajectory(
        traj_id=task.task_id,
        task=task,
        rollout=0,
        status=Status.DONE,
        prompt=Prompt(tuple(messages[:first]), tuple(tools)),
        steps=tuple(_step(k, message, ids_T[step_T == k], status) for k, (message, status) in turns),
        segments=(Segment(ids_T, mask_T, step_T, {"behaviour": np.zeros(len(ids_T), np.float32)}),),
    )


def number_turns(mask_T: Bool[np.ndarray, "T"]) -> Int[np.ndarray, "T"]:
    """Step index of every masked token, -1 elsewhere: each run of the mask is one turn.

    mask  0 1 1 0 0 1      step  -1 0 0 -1 -1 1
    """
    starts_T = mask_T & ~np.concatenate([[False], mask_T[:-1]])
    return np.where(mask_T, np.cumsum(starts_T) - 1, -1).astype(np.int32)


def read_conversations(path: Path, renderer: Renderer) -> list[Trajectory]:
    """Every conversation of a JSON Lines file. Raises DataError naming the line that cannot be used."""
    if not path.is_file():
        raise DataError(f"{path}: no such file of conversations (JSON Lines, one conversation a line)")
    found = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error}); expected JSON Lines") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            messages = [_message(item) for item in entry["messages"]]
            statuses = [_status(item) for item in entry["messages"] if item["role"] == "assistant"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}:{number}: not a conversation ({type(error).__name__}: {error})"
            ) from None
        task = Task(task_id=f"{path.stem}:{number}", env="conversations", split="train")
        found.append(
            conversation(messages, renderer, task=task, tools=entry.get("tools") or (), statuses=statuses)
        )
    if not found:
        raise DataError(f"{path} holds no conversation")
    return found


def _message(item: Any) -> Message:
    if item["role"] not in ("system", "user", "assistant", "tool"):
        raise ValueError(f"unknown role {item['role']!r}")
    calls = tuple(_call(call.get("function", call)) for call in item.get("tool_calls") or ())
    content = item["content"]
    if content is None and calls:
        content = ""
    if not isinstance(content, str):
        raise ValueError(f"content is {type(content).__name__}, expected text")
    return Message(item["role"], content, thinking=item.get("thinking"), tool_calls=calls)


def _call(call: Any) -> ToolCall:
    arguments = json.loads(call["arguments"]) if isinstance(call["arguments"], str) else call["arguments"]
    if not isinstance(arguments, dict):
        raise ValueError(f"arguments of {call['name']!r} are {type(arguments).__name__}, expected an object")
    return ToolCall(call["name"], arguments)


def _status(item: Any) -> ExecStatus:
    return ExecStatus(item.get("exec_status", "ok"))


def _step(k: int, message: Message, ids: np.ndarray, status: ExecStatus) -> Step:
    return Step(
        k=k,
        observation_before="",
        text=message.content,
        ids_T=ids.astype(np.int32),
        logprob_T=np.zeros(len(ids), np.float32),
        version=0,
        stop=Stop.STOP,
        action=Action(text=message.content),
        exec_status=status,
        observation_after="",
    )
