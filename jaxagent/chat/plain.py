"""The smallest chat markup, for models trained from scratch: one control token a message, no header.

<|system|>Rules<|user|>Task<|assistant|>code<|end|><|tool|>output<|assistant|>code<|end|>
not trained ----------------------- trained -------- not trained ---- trained --
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxagent.chat.template import Mark, Pieces, Template, Tools
from jaxagent.errors import ConfigError
from jaxagent.types import Message

PLAIN_SPECIALS = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|tool|>", "<|assistant|>")

PLAIN_JINJA = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content }}"
    "{% if message.role == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""The same markup for Hugging Face tools; train_tokenizer writes it into the tokenizer's folder."""


def plain_opening(messages: Sequence[Message], tools: Tools) -> tuple[Pieces, Sequence[Message]]:
    if tools:
        raise ConfigError(
            "the plain chat template carries no tool descriptions; put them into a message's text"
        )
    return [], messages


def plain_context(messages: Sequence[Message]) -> Pieces:
    return [piece for message in messages for piece in (Mark(f"<|{message.role}|>"), message.content)]


def plain_spoken(message: Message) -> str:
    if message.tool_calls:
        raise ConfigError(
            "the plain chat template carries no tool calls; write the action into the message's text"
        )
    return message.content


PLAIN = Template(
    name="plain",
    end=Mark("<|end|>"),
    opening=plain_opening,
    context=plain_context,
    generation=(Mark("<|assistant|>"),),
    spoken=plain_spoken,
)
