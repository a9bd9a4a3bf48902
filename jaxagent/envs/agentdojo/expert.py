"""The oracle: a task's reference calls, then its reference answer. Imports the package in the process that plays it."""

from __future__ import annotations

import json
from random import Random

from jaxagent.chat.chatml import call_text
from jaxagent.envs.agentdojo import suites
from jaxagent.types import Task, ToolCall

DONE = "Done."  # the answer where the reference has none


class Expert:
    """One message a call as long as the benchmark's 15 rounds allow, else all calls in one message.

    Each message with calls errs with probability `sloppiness`: it is left out, or names a tool that does not exist.
    """

    def __init__(self, task: Task, rng: Random, sloppiness: float, *, version: str, attack: str, rounds: int):
        calls, answer = suites.ground_truth(version, task, attack)
        groups = [[call] for call in calls] if len(calls) <= rounds else [calls]
        messages = []
        for group in groups:
            if rng.random() >= sloppiness:
                messages.append("\n".join(call_text(_plain(call)) for call in group))
            elif rng.random() < 0.5:
                messages.append(call_text(ToolCall("do_it", {})))
        self._messages = iter([*messages, answer or DONE])

    def act(self, observation: str) -> str:
        return next(self._messages)


def _plain(call: ToolCall) -> ToolCall:
    """Arguments as JSON; dates are written as text, which the tools read."""
    return ToolCall(call.name, json.loads(json.dumps(dict(call.arguments), default=str)))
