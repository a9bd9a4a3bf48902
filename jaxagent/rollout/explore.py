"""Another tool than the policy's choice, now and then: epsilon-greedy over tools.

    mu(tool) = (1 - epsilon) pi(tool) + epsilon / number of tools

In: the tools of an opening, and epsilon. Out: for each message the ids that it is made to begin with, mostly none:

    forced    <tool_call>\n{"name": "find", "arguments":       not sampled, not trained on (mask 0, step -1)
    sampled    {"title": "x"}}\n</tool_call><|im_end|>         trained as ever

A forced message calls its tool at once, without thoughts before. Draws depend on the random stream of the message
alone, so that a retry repeats them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from jaxagent.errors import ConfigError
from jaxagent.types import SampleKey

FORCED = "forced"  # key of `Trajectory.extra`: the numbers of the steps whose messages were forced

Forced = Callable[[int], list[int]]
"""Step -> the ids that its message is made to begin with."""


@runtime_checkable
class Speaks(Protocol):
    """What is needed of a renderer."""

    def sampled(self, message: str, /) -> Sequence[int]: ...


def mixed_with_uniform(p_A: Float[np.ndarray, "A"], epsilon: float) -> Float[np.ndarray, "A"]:
    """The distribution of tools under epsilon. pi .7, .2, .1 and epsilon .1: .6633, .2133, .1233."""
    return (1 - epsilon) * p_A + epsilon / p_A.size


def never(step: int) -> list[int]:
    """No message is forced."""
    return []


def forced_tools(
    tools: Sequence[Mapping[str, Any]], epsilon: float, *, renderer: Speaks, key: SampleKey
) -> Forced:
    """With probability epsilon a message begins with the call of one of the tools, each as likely as another."""
    if not epsilon:
        return never
    names = [tool_name(tool) for tool in tools]
    if not names:
        raise ConfigError(
            f"rollout.tool_epsilon={epsilon}: the environment's opening describes no tools to choose from; set it to 0"
        )

    def forced(step: int) -> list[int]:
        draw = Random(f"{key.seed}/{key.task}/{key.rollout}/{step}/tool")
        if draw.random() >= epsilon:
            return []
        return list(renderer.sampled(call_opening(draw.choice(names))))[:-1]  # without the end of the turn

    return forced


def tool_name(tool: Mapping[str, Any]) -> str:
    """Of a JSON schema, or of one as `function` of an OpenAI record."""
    return str(tool.get("function", tool)["name"])


def call_opening(name: str) -> str:
    """What chat/tools.py reads as the beginning of a call; the arguments are the policy's."""
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments":'
