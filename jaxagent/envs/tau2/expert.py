"""The reference solution as an agent: the benchmark's calls, then what the user must be told."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TRANSFER = "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON."  # the policies ask for these words
SLIPS = (  # a tool that is not there, JSON that cannot be read, a call that changes nothing
    '<tool_call>\n{"name": "lookup", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "calculate", "arguments": {"expression": }}\n</tool_call>',
    '<tool_call>\n{"name": "calculate", "arguments": {"expression": "1 + 1"}}\n</tool_call>',
)


@dataclass
class Expert:
    """Writes one reference call a message. Before each, with probability `sloppiness`, it slips once."""

    criteria: Mapping[str, Any]
    rng: random.Random
    sloppiness: float
    _next: int = 0
    _slipped: bool = field(default=False)

    def act(self, observation: str) -> str:
        if not self._slipped and self.rng.random() < self.sloppiness:
            self._slipped = True
            return self.rng.choice(SLIPS)
        self._slipped = False
        calls = self.criteria["actions"] or []
        if self._next >= len(calls):
            return self._last_words(calls)
        call = calls[self._next]
        self._next += 1
        return tool_call(call["name"], call["arguments"])

    def _last_words(self, calls: list[Mapping[str, Any]]) -> str:
        if any(call["name"] == "transfer_to_human_agents" for call in calls):
            return TRANSFER
        told = self.criteria["communicate_info"] or []
        return f"That is done. For your records: {', '.join(told)}." if told else "That is done."


def tool_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as the policy writes it."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"
