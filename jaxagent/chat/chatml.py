"""ChatML as Qwen2.5, Qwen3 and SmolLM2 write it. The texts equal the families' own Jinja templates (tested).

    <|im_start|>system\\n…<|im_end|>\\n<|im_start|>user\\n…<|im_end|>\\n<|im_start|>assistant\\n…<|im_end|>\\n

Tool results are user messages with `<tool_response>` blocks; neighbouring results share one message.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from itertools import groupby

from jaxagent.chat.template import Mark, Pieces, Template, Tools
from jaxagent.types import Message, ToolCall

START, END, TEXT_END = Mark("<|im_start|>"), Mark("<|im_end|>"), Mark("<|endoftext|>")
EMPTY_THINK = "<think>\n\n</think>\n\n"
QWEN25_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
SMOLLM2_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


def block(role: str, content: str) -> Pieces:
    return [START, f"{role}\n{content}", END, "\n"]


def chatml_opening(
    messages: Sequence[Message], tools: Tools, *, default_system: str
) -> tuple[Pieces, Sequence[Message]]:
    """The system block: the given system message, else the family's default, and the tool descriptions."""
    given = bool(messages) and messages[0].role == "system"
    system, rest = (messages[0].content, messages[1:]) if given else (default_system, messages)
    if tools:
        listing = "".join("\n" + json.dumps(dict(tool), ensure_ascii=False) for tool in tools)
        lead = f"{system}\n\n" if given or default_system else ""
        return block("system", lead + TOOLS_HEAD + listing + TOOLS_TAIL), rest
    return (block("system", system), rest) if given or default_system else ([], rest)


def chatml_context(messages: Sequence[Message]) -> Pieces:
    pieces: Pieces = []
    for is_tool, run in groupby(messages, key=lambda message: message.role == "tool"):
        if is_tool:
            results = "".join(f"\n<tool_response>\n{message.content}\n</tool_response>" for message in run)
            pieces += [START, "user" + results, END, "\n"]
        else:
            for message in run:
                pieces += block(message.role, message.content)
    return pieces


def call_text(call: ToolCall) -> str:
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    return f'<tool_call>\n{{"name": "{call.name}", "arguments": {arguments}}}\n</tool_call>'


def with_calls(content: str, calls: Sequence[ToolCall]) -> str:
    return "\n".join(([content] if content else []) + [call_text(call) for call in calls])


def thought(thinking: str) -> str:
    return "<think>\n" + thinking.strip("\n") + "\n</think>\n\n"


def chatml_spoken(message: Message) -> str:
    """What a policy without thinking samples. `thinking` is left out, as these families' templates do."""
    return with_calls(message.content, message.tool_calls)


def qwen3_spoken(message: Message) -> str:
    """What Qwen3 samples: thinking, content, tool calls. A message without thinking has no think block."""
    if message.thinking is None:
        return with_calls(message.content, message.tool_calls)
    return thought(message.thinking) + with_calls(message.content.lstrip("\n"), message.tool_calls)


def qwen3_stripped(message: Message, after_query: bool, last: bool) -> tuple[Pieces, str]:
    """An assistant message in a history, as Qwen3's own template writes it.

    Thinking survives only after the last real query. There the newest message has a think block even if it
    did not think; that empty block comes from the template, so it belongs to what opens the message.
    """
    lead: Pieces = [START, "assistant\n"]
    thinking, content = message.thinking, message.content
    if thinking is None and "</think>" in content:
        thinking = content.split("</think>")[0].rstrip("\n").split("<think>")[-1].lstrip("\n")
        content = content.split("</think>")[-1].lstrip("\n")
    if not (after_query and (last or thinking)):
        return lead, with_calls(content, message.tool_calls)
    said = with_calls(content.lstrip("\n"), message.tool_calls)
    return (lead, thought(thinking) + said) if thinking else ([*lead, EMPTY_THINK], said)


def chatml(name: str, *, default_system: str = "") -> Template:
    """ChatML without thinking: everything an assistant says stays in the history as it was sampled."""
    return Template(
        name=name,
        end=END,
        tail="\n",
        stops=(TEXT_END,),
        opening=partial(chatml_opening, default_system=default_system),
        context=chatml_context,
        generation=(START, "assistant\n"),
        spoken=chatml_spoken,
    )


def qwen3(name: str, *, generation: tuple[str, ...]) -> Template:
    """Qwen3 with switchable thinking (the 2025-04 models; the 2507 instruct models use `chatml`)."""
    return Template(
        name=name,
        end=END,
        tail="\n",
        stops=(TEXT_END,),
        opening=partial(chatml_opening, default_system=""),
        context=chatml_context,
        generation=generation,
        spoken=qwen3_spoken,
        stripped=qwen3_stripped,
        thinking=True,
    )


QWEN25 = chatml("qwen2.5", default_system=QWEN25_SYSTEM)
SMOLLM2 = chatml("smollm2", default_system=SMOLLM2_SYSTEM)
CHATML = chatml("chatml")
QWEN3_INSTRUCT = chatml("qwen3-instruct-2507")
QWEN3 = qwen3("qwen3", generation=(START, "assistant\n"))
QWEN3_NO_THINKING = qwen3("qwen3-no-thinking", generation=(START, "assistant\n" + EMPTY_THINK))
