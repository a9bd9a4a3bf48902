"""Messages to calls and back. In: an assistant's message. Out: an `Action`; never an exception, never evaluated text.

Two ways of writing calls: Hermes/Qwen `<tool_call>` JSON, and the benchmark's own list of Python calls,
`[cd(folder='temp'), ls()]`. A message without a call is a plain one, by which the assistant ends its turn.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jaxagent.chat.tools import CALL_OPEN, parse_tool_calls
from jaxagent.types import Action, Message, ToolCall

Format = Literal["hermes", "python"]
SHOWN_CHARS = 80


def parse_hermes(message: Message) -> Action:
    """`<tool_call>` JSON. One call that cannot be read makes the whole message an error."""
    if CALL_OPEN not in message.content and not message.tool_calls:
        return _plain(message)
    action = parse_tool_calls(message)
    faulty = next((call for call in action.tool_calls if not _finite(call.arguments)), None)
    if faulty is not None:
        return Action(error=f"Tool call {faulty.name} was not run: a number in its arguments is too large")
    return action


def parse_python(message: Message) -> Action:
    """A list of calls with literal keyword arguments, `[f(a=1), g()]`; brackets and a code fence may be left out.

    Text that is no Python at all is a plain message. Positional arguments are dropped, as by the benchmark.
    """
    text = message.content.strip("`\n ").removeprefix("python\n").strip()
    if not text:
        return _plain(message)
    try:
        calls = [_call(node) for node in _elements(text)]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # MemoryError: nested too deeply
        looks_like_calls = text.startswith("[") and text.endswith("]")
        return Action(error=f"The calls were not run: {error}") if looks_like_calls else Action(text=text)
    return Action(text=message.content, tool_calls=tuple(calls)) if calls else _plain(message)


def _elements(text: str) -> list[ast.expr]:
    bracketed = text if text.startswith("[") else f"[{text}"
    bracketed = bracketed if bracketed.endswith("]") else f"{bracketed}]"
    body = ast.parse(bracketed, mode="eval").body
    if not isinstance(body, ast.List):
        raise ValueError("expected a list of calls, [name(argument=value), …]")
    return body.elts


def _call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call):
        raise ValueError(f"{ast.unparse(node)[:SHOWN_CHARS]} is not a call")
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("** is not allowed; write the arguments by name")
        arguments[keyword.arg] = ast.literal_eval(keyword.value)
    if not _finite(arguments):
        raise ValueError("a number in its arguments is too large")
    return ToolCall(ast.unparse(node.func), arguments)


def _plain(message: Message) -> Action:
    """The end of the assistant's turn; an empty message ends it too, but says nothing."""
    if message.content.strip():
        return Action(text=message.content)
    cause = "ended while thinking" if message.thinking else "is empty"
    return Action(error=f"The message {cause}: it neither calls a function nor answers the user.")


def _finite(value: Any) -> bool:
    """No infinities: 1e999 is JSON, but no argument that could be written down again."""
    if isinstance(value, Mapping):
        return all(_finite(part) for part in value.values())
    if isinstance(value, list | tuple | set):
        return all(_finite(part) for part in value)
    return not isinstance(value, float) or math.isfinite(value)


def read_python_call(text: str, parameters: Mapping[str, Sequence[str]]) -> ToolCall:
    """One call of the ground truth, `cd('temp')` -> cd(folder='temp'); `parameters` are each function's, in order."""
    node = ast.parse(text, mode="eval").body
    call = _call(node)
    assert isinstance(node, ast.Call)
    positional = [ast.literal_eval(argument) for argument in node.args]
    return ToolCall(call.name, {**dict(zip(parameters[call.name], positional)), **call.arguments})


def write_python(calls: Sequence[ToolCall]) -> str:
    return f"[{', '.join(python_call(call) for call in calls)}]"


def python_call(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"


def write_hermes(calls: Sequence[ToolCall]) -> str:
    texts = [
        json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
        for call in calls
    ]
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts)
