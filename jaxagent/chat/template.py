"""What a chat template is, as data. Rendering (chat/render.py) knows no family; a family is one `Template`.

Markup is a list of pieces: a `Mark` is one control token, everything else is text. Only marks become control
tokens, so text from users and environments cannot forge a turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxagent.types import Message


class Mark(str):
    """A control token of the template, such as `<|im_start|>`."""

    __slots__ = ()


Pieces = list[str]
"""`Mark`s and plain text, in order."""

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Template:
    """One chat markup.

    end:        control token that ends a message; the policy samples it.
    tail:       text between `end` and the next message. Nobody samples it; the renderer inserts it.
    stops:      further control tokens at which sampling stops, where the tokenizer has them.
    opening:    (messages, tools) -> pieces of the system block, and the messages that remain.
    context:    a run of user, system and tool messages -> pieces.
    generation: what opens the policy's message, e.g. `<|im_start|>assistant\\n`.
    spoken:     an assistant message -> the text that the policy samples for it (without `end`).
    stripped:   (message, after the last query?, last of all?) -> (opening pieces, text) of an assistant
                message as the family's own template writes it into a history, thinking of earlier turns
                removed. None: the same as sampled.
    thinking:   sampled messages may open with `<think>…</think>`.
    """

    name: str
    end: Mark
    opening: Callable[[Sequence[Message], Tools], tuple[Pieces, Sequence[Message]]]
    context: Callable[[Sequence[Message]], Pieces]
    generation: tuple[str, ...]
    spoken: Callable[[Message], str]
    stripped: Callable[[Message, bool, bool], tuple[Pieces, str]] | None = None
    tail: str = ""
    stops: tuple[Mark, ...] = ()
    thinking: bool = False
