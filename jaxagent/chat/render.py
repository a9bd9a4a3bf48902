"""Messages to tokens, token-in/token-out. In: `Prompt`s and `Message`s. Out: ids to append to a context.

A conversation grows by appending; what was sampled is never decoded and re-encoded:

    open(prompt)            <|im_start|>user\\nTask<|im_end|>\\n<|im_start|>assistant\\n
    sampled by the policy   print(1)<|im_end|>
    reply(observation)      \\n<|im_start|>user\\n1<|im_end|>\\n<|im_start|>assistant\\n

The newline after `<|im_end|>` belongs to the template and is sampled by nobody, so `reply` starts with it. A message
that was cut (length) never sampled its `<|im_end|>`: append `close(ids)` before `reply`, masked.

Thinking of earlier turns. Qwen3's own template removes it as soon as a new user message arrives, so the history of turn
n+1 is no extension of turn n's. `history="preserve"` (default) keeps every sampled token in place: append-only, one
training row an episode, a small drift from the family's template. `history="strip"` renders histories exactly as the
family's template does; every turn then opens a new context (`open` on the whole history) and is a training row of its
own. Tool results (role "tool") are no new query: there both agree.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Literal

import numpy as np

from jaxagent.chat.chatml import CHATML, QWEN3, QWEN3_INSTRUCT, QWEN3_NO_THINKING, QWEN25, SMOLLM2
from jaxagent.chat.plain import PLAIN
from jaxagent.chat.template import Mark, Pieces, Template, Tools
from jaxagent.chat.tokenizer import Tokenizer
from jaxagent.errors import ConfigError
from jaxagent.types import Message, Prompt

History = Literal["preserve", "strip"]

TEMPLATES = {t.name: t for t in (QWEN25, QWEN3, QWEN3_NO_THINKING, QWEN3_INSTRUCT, SMOLLM2, CHATML, PLAIN)}


def find_template(name: str) -> Template:
    """The template that a configuration names."""
    if name not in TEMPLATES:
        raise ConfigError(f"unknown chat template {name!r}; known: {', '.join(sorted(TEMPLATES))}")
    return TEMPLATES[name]


class Renderer:
    """Renders one template with one tokenizer. Holds no conversation: callers append what it returns."""

    def __init__(self, tokenizer: Tokenizer, template: Template | str, *, history: History = "preserve"):
        self.tokenizer = tokenizer
        self.template = find_template(template) if isinstance(template, str) else template
        self.history: History = history
        self.end_id = tokenizer.id(self.template.end)
        further = [tokenizer.id(stop) for stop in self.template.stops if tokenizer.has(stop)]
        self.stop_ids: tuple[int, ...] = (self.end_id, *further)
        names = sorted(map(re.escape, tokenizer.specials), key=len, reverse=True)
        self._control = re.compile("|".join(names)) if names else None

    def open(self, prompt: Prompt) -> list[int]:
        """Ids of a context up to and including the generation prompt. May hold earlier assistant messages."""
        ids, _ = self._conversation(prompt.messages, prompt.tools)
        return ids + self._encode(self.template.generation)

    def reply(self, *messages: Message) -> list[int]:
        """Ids that follow a finished sampled message: its tail, the observation(s), the generation prompt."""
        pieces = [self.template.tail, *self.template.context(messages), *self.template.generation]
        return self._encode(pieces, after=self.template.end)

    def sampled(self, message: Message | str) -> list[int]:
        """The ids that a policy would sample for an assistant message, its end-of-turn included."""
        text = message if isinstance(message, str) else self.template.spoken(message)
        return [*self._encode([text], after=self.template.end), self.end_id]

    def close(self, ids: Sequence[int] | np.ndarray = ()) -> list[int]:
        """The end-of-turn that a cut message lacks; nothing if the sampled `ids` already end with it."""
        return [] if len(ids) and int(ids[-1]) == self.end_id else [self.end_id]

    def whole(self, messages: Sequence[Message], tools: Tools = ()) -> tuple[np.ndarray, np.ndarray]:
        """A finished conversation: ids int32 [T] and mask bool [T], true on what the policy would sample.

        token   <|im_start|>assistant\\n  print(1) <|im_end|>  \\n
        mask             0          0         1         1       0
        """
        ids, mask = self._conversation(messages, tools)
        return np.asarray(ids, np.int32), np.asarray(mask, bool)

    def parse(self, ids: Sequence[int] | np.ndarray) -> Message:
        """The message that sampled `ids` spell: thinking (without tags) and content, verbatim otherwise.

        Tool calls stay in the content, where chat/tools.py reads them and reports what is wrong with them. A
        message that was cut inside its thinking has no content.
        """
        sampled = [int(i) for i in ids]
        if sampled and sampled[-1] in self.stop_ids:
            sampled.pop()
        text = self.tokenizer.decode(sampled)
        if not self.template.thinking:
            return Message("assistant", text)
        if not text.lstrip().startswith("<think>"):
            return Message("assistant", text)
        head, _, content = text.partition("</think>")
        return Message("assistant", content.lstrip("\n"), thinking=head.split("<think>", 1)[1].strip("\n"))

    # --- pieces -> ids ------------------------------------------------------------------------------------

    def _conversation(self, messages: Sequence[Message], tools: Tools) -> tuple[list[int], list[bool]]:
        """Ids and mask of the messages, without a final generation prompt."""
        opening, rest = self.template.opening(messages, tools)
        ids, mask = self._append([], [], opening)
        query = _last_query(rest)
        position = 0
        for speaks, run in groupby(rest, key=lambda message: message.role == "assistant"):
            turn = list(run)
            if not speaks:
                ids, mask = self._append(ids, mask, self.template.context(turn))
            for offset, message in enumerate(turn if speaks else ()):
                index = position + offset
                self._say(ids, mask, message, after_query=index > query, last=index == len(rest) - 1)
            position += len(turn)
        return ids, mask

    def _say(
        self, ids: list[int], mask: list[bool], message: Message, *, after_query: bool, last: bool
    ) -> None:
        """Append one assistant message: what opens it, what is sampled, its end and its tail."""
        if self.history == "strip" and self.template.stripped is not None:
            lead, body = self.template.stripped(message, after_query, last)
        else:
            lead, body = self.template.generation, message
        for part, trained in (
            (self._encode(lead), False),
            (self.sampled(body), True),
            (self._encode([self.template.tail], after=self.template.end), False),
        ):
            ids += part
            mask += [trained] * len(part)

    def _append(self, ids: list[int], mask: list[bool], pieces: Pieces) -> tuple[list[int], list[bool]]:
        new = self._encode(pieces)
        return ids + new, mask + [False] * len(new)

    def _encode(self, pieces: Sequence[str], *, after: Mark | None = None) -> list[int]:
        """Encode marks as control tokens and the text between two marks in one piece.

        Each text is encoded behind its mark, whose id is cut off again: tokenizers that treat the start of a text in
        their own way (SentencePiece's leading space) then see what they see in the whole conversation.
        """
        ids: list[int] = []
        mark, text = after, ""
        for piece in [*pieces, None]:
            if piece is not None and not isinstance(piece, Mark):
                text += piece
                continue
            ids += self._text(text, mark)
            if piece is not None:
                ids.append(self.tokenizer.id(piece))
                mark, text = piece, ""
        return ids

    def _text(self, text: str, mark: Mark | None) -> list[int]:
        ids: list[int] = []
        for part in self._harmless(text):
            encoded = self.tokenizer.encode((mark or "") + part)
            ids += encoded[1:] if mark else encoded
        return ids

    def _harmless(self, text: str) -> list[str]:
        """Cut control tokens that are written out in a text after their first character: they stay text."""
        parts, start = [], 0
        while self._control is not None and (found := self._control.search(text, start)):
            parts.append(text[start : found.start() + 1])
            start = found.start() + 1
        return [part for part in (*parts, text[start:]) if part]


def _last_query(messages: Sequence[Message]) -> int:
    """Index of the last user message that is not a tool result; thinking before it is stripped by Qwen3."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        wrapped = message.content.startswith("<tool_response>") and message.content.endswith(
            "</tool_response>"
        )
        if message.role == "user" and not wrapped:
            return index
    return len(messages) - 1
