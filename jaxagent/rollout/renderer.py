"""What episodes need of chat/render.py. docs/architecture.md has the meaning of each method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from jaxagent.types import Message, Prompt


@runtime_checkable
class Renderer(Protocol):
    stop_ids: tuple[int, ...]

    def open(self, prompt: Prompt, /) -> Sequence[int]: ...

    def reply(self, *messages: Message) -> Sequence[int]: ...

    def close(self, ids: Sequence[int], /) -> Sequence[int]: ...

    def sampled(self, message: str, /) -> Sequence[int]: ...

    def parse(self, ids: Sequence[int], /) -> Message: ...
