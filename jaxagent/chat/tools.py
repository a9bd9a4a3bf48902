"""What a sampled message asks for. In: an assistant `Message`. Out: an `Action`; never an exception.

A message without a legal action gives `Action(error=…)`: the environment answers with that text, so it is
written for the model: what was found, what was expected. Nothing here runs code or calls tools.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal

from jaxagent.types import Action, Message, ToolCall

FENCE = "```"
FENCE_HEAD = re.compile(r"`*[ \t]*([\w+#.-]*)[^\n`]*(\n|\Z)")
FENCE_CLOSE = re.compile(r"^[ \t]*```", re.MULTILINE)
PYTHON = ("python", "py", "python3", "")
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
SHOWN_CHARS = 80  # of a faulty text in an error message
JSON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def parse_code(message: Message, *, blocks: Literal["first", "all"] = "first", whole: bool = False) -> Action:
    """Python code of a message: its first fenced block, or all of them joined.

    A block that is not closed runs to the end of the message (the message was cut). With `whole`, a message
    that has no fence at all is code itself.
    """
    found = fenced_blocks(message.content)
    code = [text for language, text in found if language in PYTHON and text.strip()]
    if code:
        return Action(text=code[0] if blocks == "first" else "\n".join(code))
    if whole and not found and message.content.strip():
        return Action(text=message.content.strip("\n"))
    wanted = "Write the code to run between ```python and ```."
    if not message.content.strip():
        cause = "The message is empty" if not message.thinking else "The message ended while thinking"
        return Action(error=f"{cause}: there is nothing to run. {wanted}")
    other = sorted({language for language, _ in found if language not in PYTHON})
    if other:
        return Action(error=f"Found a {other[0]} block but no Python code. {wanted}")
    return Action(error=f"{'The code block is empty' if found else 'Found no code block'}. {wanted}")


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """(language in lower case, content) of every fenced block; a fence closes at the start of a line.

    `before ```python\\nx = 1\\n``` after`  ->  [("python", "x = 1")]
    """
    found, position = [], 0
    while (start := text.find(FENCE, position)) >= 0:
        head = FENCE_HEAD.match(text, start + len(FENCE))
        if head is None:  # opened and closed on one line: ```print(1)```
            body_start = start + len(FENCE)
            end = text.find(FENCE, body_start)
            if end < 0 or "\n" in text[body_start:end]:
                position = body_start
                continue
            language, _, body = re.sub(r"^(python3?|py)\s", r"\1\0", text[body_start:end]).rpartition("\0")
            found.append((language.lower(), body))
            position = end + len(FENCE)
            continue
        close = FENCE_CLOSE.search(text, head.end())
        end = close.start() if close else len(text)
        found.append((head.group(1).lower(), text[head.end() : end].rstrip("\r\n")))
        position = close.end() if close else len(text)
    return found


def parse_tool_calls(
    message: Message, tools: Sequence[Mapping[str, Any]] = (), *, text_ok: bool = False
) -> Action:
    """Hermes/Qwen calls, `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, checked against the tools.

    One faulty call makes the whole message an error: nothing is executed in part. Without any call the
    message is an error too, unless `text_ok`: then its text is the action (an answer to the user). Without
    `tools`, names and arguments are not checked.
    """
    calls: list[ToolCall] = list(message.tool_calls)
    position = 0
    while not message.tool_calls and (start := message.content.find(CALL_OPEN, position)) >= 0:
        parsed, position = _read_call(message.content, start + len(CALL_OPEN))
        if isinstance(parsed, str):
            return Action(error=f"Tool call {len(calls) + 1} was not run: {parsed}")
        calls.append(parsed)
    for number, call in enumerate(calls, 1):
        fault = _check_call(call, tools)
        if fault:
            return Action(error=f"Tool call {number} was not run: {fault}")
    if calls:
        return Action(text=message.content, tool_calls=tuple(calls))
    if text_ok and message.content.strip():
        return Action(text=message.content)
    cause = (
        "The message ended while thinking"
        if message.thinking and not message.content
        else "Found no tool call"
    )
    return Action(error=f'{cause}. Write <tool_call>\n{{"name": …, "arguments": {{…}}}}\n</tool_call>.')


def _read_call(text: str, start: int) -> tuple[ToolCall | str, int]:
    """The call whose JSON begins at `start`, or what is wrong with it; and where to read on."""
    close = text.find(CALL_CLOSE, start)
    raw = text[start : close if close >= 0 else len(text)]
    shown = raw.strip()[:SHOWN_CHARS]
    try:
        begin = start + len(text[start:]) - len(text[start:].lstrip())
        value, end = STRICT_JSON.raw_decode(text, begin)
    except RecursionError:
        return f"its JSON is nested too deeply: {shown}", len(text)
    except ValueError as error:
        cut = "" if close >= 0 else " (the message ended before </tool_call>)"
        return f"its JSON cannot be read: {getattr(error, 'msg', error)}{cut}: {shown}", len(text)
    rest = text[end:].lstrip()
    if rest and not rest.startswith(CALL_CLOSE) and not rest.startswith(CALL_OPEN):
        return f"unexpected text after its JSON: {rest[:SHOWN_CHARS]}", len(text)
    return _as_call(value, shown), end


def _as_call(value: Any, shown: str) -> ToolCall | str:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return f'expected an object {{"name": "…", "arguments": {{…}}}}, got: {shown}'
    arguments = value.get("arguments", {})
    if isinstance(arguments, str):  # some models write the arguments as a JSON string
        try:
            arguments = STRICT_JSON.decode(arguments or "{}")
        except (ValueError, RecursionError) as error:
            return f'"arguments" is a string that is not JSON ({getattr(error, "msg", error)}): {shown}'
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return f'"arguments" must be an object, got {type(arguments).__name__}: {shown}'
    return ToolCall(value["name"], arguments)


def _check_call(call: ToolCall, tools: Sequence[Mapping[str, Any]]) -> str:
    """What is wrong with a call, or "" when it fits its tool's schema."""
    if not tools:
        return ""
    schemas = {tool["name"]: tool for tool in (dict(entry.get("function", entry)) for entry in tools)}
    if call.name not in schemas:
        near = get_close_matches(call.name, schemas, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return f"there is no tool {call.name[:SHOWN_CHARS]!r}.{hint} Tools: {', '.join(schemas)}"
    schema = schemas[call.name].get("parameters") or {}
    missing = [name for name in schema.get("required", ()) if name not in call.arguments]
    if missing:
        return f"{call.name} needs the argument(s) {', '.join(missing)}"
    properties = schema.get("properties", {})
    for name, value in call.arguments.items():
        if name not in properties:
            if schema.get("additionalProperties") is False:
                return f"{call.name} takes no argument {name!r}; it takes {', '.join(properties) or 'none'}"
            continue
        fault = _check_value(value, properties[name])
        if fault:
            return f"{call.name}: argument {name!r} {fault}"
    return ""


def _check_value(value: Any, schema: Any) -> str:
    """A shallow check: type and enumeration. What is inside arrays and objects is the tool's business."""
    if not isinstance(schema, Mapping):
        return ""
    kinds = schema.get("type")
    names = [kinds] if isinstance(kinds, str) else list(kinds or ())
    known = [name for name in names if name in JSON_TYPES]
    if known and len(known) == len(names) and not any(_is(value, name) for name in known):
        return f"must be {' or '.join(known)}, got {_json_type(value)} {json.dumps(value)[:SHOWN_CHARS]}"
    allowed = schema.get("enum")
    if allowed is not None and value not in allowed:
        return f"must be one of {json.dumps(list(allowed))}, got {json.dumps(value)[:SHOWN_CHARS]}"
    return ""


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):  # Python's bool is an int, JSON's is not
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, JSON_TYPES[name])


def _json_type(value: Any) -> str:
    return next((name for name in JSON_TYPES if _is(value, name)), type(value).__name__)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is too large a number")
    return value


STRICT_JSON = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)
"""Finite numbers only: what an agent asks for is written down as JSON, which has no others."""
