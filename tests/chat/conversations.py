"""Conversations that the rendering tests share, and their form for transformers."""

import functools

from jaxagent.types import Message, ToolCall

U, A, T, S = (functools.partial(Message, role) for role in ("user", "assistant", "tool", "system"))
TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds <b>two</b> numbers, é.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "description": "Time.", "parameters": {}}},
)
ADD = ToolCall("add", {"a": 1, "b": 2, "note": 'naïve "quote"'})
NOW = ToolCall("now", {})

# name -> (messages, tools)
CONVERSATIONS = {
    "one turn": ((U("Hello"), A("Hi there.")), ()),
    "system": ((S("Be brief."), U("Hello"), A("Hi")), ()),
    "three turns": ((U("1?"), A("one"), U("2?"), A("two"), U("3?"), A("three")), ()),
    "newlines": ((U("\n\n1?\n"), A("one\n\n"), U("  2? \n\n"), A("two")), ()),
    "unicode": ((U("héllo 日本 🎉"), A("ça va\tçà")), ()),
    "thinking": ((U("1?"), A("one", thinking="hm"), U("2?"), A("two", thinking="hm\n\nhm")), ()),
    "thinking in the text": (
        (U("1?"), A("<think>\nhm\n</think>\n\none"), U("2?"), A("two")),
        (),
    ),
    "system later": ((U("1?"), A("one"), S("Be brief."), U("2?"), A("two")), ()),
    "tools offered": ((U("1+2?"), A("3")), TOOLS),
    "tools with system": ((S("Be brief."), U("1+2?"), A("3")), TOOLS),
    "tool call": (
        (U("1+2?"), A("", thinking="add", tool_calls=(ADD,)), T("3"), A("3", thinking="so")),
        TOOLS,
    ),
    "tool calls": (
        (
            U("1+2?"),
            A("Let me see.", thinking="two", tool_calls=(ADD, NOW)),
            T("3"),
            T("noon\n"),
            A("", thinking="again", tool_calls=(NOW,)),
            T("noon"),
            A("3 at noon", thinking="done"),
        ),
        TOOLS,
    ),
    "code by tool role": (
        (
            U("Task"),
            A("```python\nx\n```", thinking="a"),
            T("NameError"),
            A("```python\n1\n```", thinking="b"),
        ),
        (),
    ),
    "ends with a result": ((U("1+2?"), A("", thinking="add", tool_calls=(ADD,)), T("3")), TOOLS),
}
# where Qwen3's own template keeps the thinking of every turn, so that appending and re-rendering agree
TOOL_CONVERSATIONS = ("tool call", "tool calls", "code by tool role", "ends with a result")


def opening_length(messages):
    """How many messages come before the first assistant message."""
    return next(i for i, message in enumerate(messages) if message.role == "assistant")


def hf_messages(messages):
    def convert(message):
        out = {"role": message.role, "content": message.content}
        if message.thinking is not None:
            out["reasoning_content"] = message.thinking
        if message.tool_calls:
            out["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
                for call in message.tool_calls
            ]
        return out

    return [convert(message) for message in messages]
