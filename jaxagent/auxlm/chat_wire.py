"""The chat-completions protocol of multi-turn conversations: our messages to its JSON, its answers to our messages.

Tool results must name the call that they answer. `Conversation` keeps these ids, and keeps the history legal whatever
the environment answers: a result without an open call is sent as a user's message, an open call without a result of
its own gets a pointer to the next message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxagent.auxlm.client import AuxError
from jaxagent.chat.tools import STRICT_JSON
from jaxagent.rollout.talk import call_text
from jaxagent.types import Message, Stop, ToolCall

ELSEWHERE = "(see the next message)"
MOST_TOKENS = 2**31  # of one message; a larger count is a mistake of the server
Wire = dict[str, Any]


@dataclass(frozen=True)
class ChatAnswer:
    """message: for the environment's parser. wire: what goes into the history. calls: ids that now wait for results."""

    message: Message
    wire: Wire
    calls: tuple[str, ...] = ()
    stop: Stop = Stop.STOP
    context: int | None = None
    sampled: int | None = None


class Conversation:
    """The history of one episode in the protocol's form; it only grows."""

    def __init__(self) -> None:
        self.messages: list[Wire] = []
        self._open: list[str] = []
        self._calls = 0

    def hear(self, new: Sequence[Message]) -> None:
        """Append what was said since the agent's last message, first the opening, which may hold earlier turns."""
        for message in new:
            if message.role == "tool":
                self._result(message.content)
                continue
            self._settle()
            if message.role == "assistant" and message.tool_calls:
                self._said_before(message)
            else:
                self.messages.append({"role": message.role, "content": message.content})
        self._settle()

    def say(self, answer: ChatAnswer) -> None:
        """Append the agent's own message."""
        self.messages.append(answer.wire)
        self._open = list(answer.calls)

    def _result(self, text: str) -> None:
        if self._open:
            self.messages.append({"role": "tool", "tool_call_id": self._open.pop(0), "content": text})
        else:
            self.messages.append({"role": "user", "content": text})

    def _settle(self) -> None:
        while self._open:
            self._result(ELSEWHERE)

    def _said_before(self, message: Message) -> None:
        """An assistant message of the opening, with calls: ids are made up for them."""
        ids = [f"example_{self._calls + n}" for n in range(len(message.tool_calls))]
        self._calls += len(ids)
        calls = [
            _wire_call(call_id, call.name, json.dumps(dict(call.arguments)))
            for call_id, call in zip(ids, message.tool_calls)
        ]
        self.messages.append({"role": "assistant", "content": message.content, "tool_calls": calls})
        self._open = ids


def wire_tools(tools: Sequence[Mapping[str, Any]]) -> list[Wire]:
    """Tool descriptions as the protocol nests them; bare ones are wrapped."""
    return [dict(t) if "function" in t else {"type": "function", "function": dict(t)} for t in tools]


def read_answer(data: bytes) -> ChatAnswer:
    """The assistant's message of a chat completion. Raises AuxError (asking again can help) if it is none.

    Calls whose arguments are no JSON object are written into the content, all of them, in the form that chat/tools.py
    reads: the environment's parser then says what is wrong, and the episode goes on.
    """
    try:
        answer: Any = json.loads(data)
        choice = answer["choices"][0]
        said = choice["message"]
        content, thinking = _text(said.get("content")), said.get("reasoning_content") or said.get("reasoning")
        raw = [_raw_call(entry, n) for n, entry in enumerate(said.get("tool_calls") or ())]
        context, sampled = _usage(answer.get("usage"))
        stop = Stop.MAX_TOKENS if choice.get("finish_reason") == "length" else Stop.STOP
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise AuxError(f"not a chat completion ({type(error).__name__}): {data[:200]!r}") from error
    content, thinking = _without_thinking(content, thinking if isinstance(thinking, str) else None)
    parsed = [_parsed(name, arguments) for _, name, arguments in raw]
    calls = tuple(call for call in parsed if call is not None)
    if len(calls) < len(raw):
        texts = [call_text(name, arguments) for _, name, arguments in raw]
        content = "\n".join(part for part in (content, *texts) if part)
        calls = ()
    wire: Wire = {"role": "assistant", "content": content}
    if calls:
        wire["tool_calls"] = [_wire_call(*entry) for entry in raw]
    return ChatAnswer(
        message=Message("assistant", content, thinking=thinking, tool_calls=calls),
        wire=wire,
        calls=tuple(entry[0] for entry in raw) if calls else (),
        stop=stop,
        context=context,
        sampled=sampled,
    )


def _text(content: Any) -> str:
    """A content is a text, nothing, or a list of parts; lone surrogates, which no file takes, are replaced."""
    if content is None:
        return ""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if part.get("type") == "text")
    if not isinstance(content, str):
        raise TypeError(f"content is {type(content).__name__}")
    return content.encode("utf-8", "replace").decode()


def _without_thinking(content: str, thinking: str | None) -> tuple[str, str | None]:
    """Servers without a reasoning parser leave `<think>…</think>` in the content."""
    if not content.lstrip().startswith("<think>"):
        return content, thinking
    head, _, rest = content.partition("</think>")
    return rest.lstrip("\n"), head.split("<think>", 1)[1].strip("\n")


def _raw_call(entry: Any, number: int) -> tuple[str, str, str]:
    """(id, name, arguments as text) of one call."""
    function = entry["function"]
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)
    return str(entry.get("id") or f"call_{number}"), str(function["name"]), text or "{}"


def _parsed(name: str, arguments: str) -> ToolCall | None:
    try:
        value = STRICT_JSON.decode(arguments)
    except (ValueError, RecursionError):
        return None
    return ToolCall(name, value) if isinstance(value, dict) else None


def _wire_call(call_id: str, name: str, arguments: str) -> Wire:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _usage(usage: Any) -> tuple[int | None, int | None]:
    """Both counts, or neither: what is no count of tokens was not counted."""
    counts = usage if isinstance(usage, dict) else {}
    context, sampled = counts.get("prompt_tokens"), counts.get("completion_tokens")
    return (context, sampled) if _is_count(context) and _is_count(sampled) else (None, None)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_TOKENS
