"""Finished conversations as trajectories: files of demonstrations, and drills. No environment took part in them.

In: messages. Out: a Trajectory in one segment whose steps are the assistant's messages, action mask on their tokens.
A file is JSON Lines, one conversation a line:

    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}], "tools": []}

A line may name its `task`, say whether that was a `success`, and give a `prompt_turn_idx`: the messages before it are
the prompt (an example in it, say), and nothing of them is trained.
An assistant's message may say how the environment took it: `"exec_status": "runtime_error"` (types.ExecStatus; "ok"
where it is not said), and may hold `tool_calls` as {"name", "arguments"} or as OpenAI's {"function": {…}}.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from jaxagent.chat.render import Renderer
from jaxagent.errors import DataError
from jaxagent.types import (
    Action,
    Evaluation,
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
    prompt_turns: int = 0,
) -> Trajectory:
    """The trajectory of a finished conversation. Raises DataError if the assistant says nothing in it.

    statuses: one for each message of the assistant; OK for all if none are given.
    prompt_turns: so many messages are the prompt, whoever speaks in them.
    """
    ids_T, mask_T = renderer.whole(messages, tools)
    step_T = number_turns(mask_T)
    given = sum(message.role == "assistant" for message in messages[:prompt_turns])
    step_T = np.where(step_T < given, -1, step_T - given).astype(np.int32)
    mask_T = step_T >= 0
    spoken = [message for message in messages[prompt_turns:] if message.role == "assistant"]
    statuses = statuses[given:]
    if len(spoken) != step_T.max(initial=-1) + 1 or not spoken:
        raise DataError(
            f"conversation {task.task_id!r}: {len(spoken)} assistant messages, {step_T.max(initial=-1) + 1} of them "
            "with tokens to learn; every conversation needs at least one and none may be empty"
        )
    turns = enumerate(zip(spoken, statuses or [ExecStatus.OK] * len(spoken), strict=True))
    first = next(i for i, message in enumerate(messages) if message.role == "assistant" and i >= prompt_turns)
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
        found.append(_recorded(entry, messages, statuses, renderer, f"{path.stem}:{number}"))
    if not found:
        raise DataError(f"{path} holds no conversation")
    return found


def _recorded(
    entry: Any, messages: Sequence[Message], statuses: Sequence[ExecStatus], renderer: Renderer, name: str
) -> Trajectory:
    """A line of a file; its verdict, if it has one, is that of its environment."""
    task = Task(task_id=str(entry.get("task") or name), env="conversations", split="train")
    prompt_turns, success = entry.get("prompt_turn_idx", 0), entry.get("success")
    if type(prompt_turns) is not int or not 0 <= prompt_turns < len(messages):
        raise DataError(
            f"conversation {name}: prompt_turn_idx={prompt_turns!r}; expected the index of one of its "
            f"{len(messages)} messages"
        )
    talk = conversation(
        messages,
        renderer,
        task=task,
        tools=entry.get("tools") or (),
        statuses=statuses,
        prompt_turns=prompt_turns,
    )
    if success is None:
        return replace(talk, traj_id=name)
    if not isinstance(success, bool):
        raise DataError(f"conversation {name}: success={success!r}; expected true or false")
    return replace(talk, traj_id=name, evaluation=Evaluation(success, int(success), 1))


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
