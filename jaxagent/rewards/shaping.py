"""Small terms beside the outcome. In: a `Trajectory`. Out: a term to add to R, before group statistics.

Terms are added with `plus`; they stay small against the outcome and capped (shaping : outcome about 0.1 : 1).
"""

from __future__ import annotations

from itertools import pairwise
from math import exp
from typing import Literal

import numpy as np
from jaxtyping import Float

from jaxagent.errors import ConfigError
from jaxagent.rewards.returns import StepTerm
from jaxagent.stage import Reward
from jaxagent.types import Step, Trajectory

Unit = Literal["action_tokens", "steps"]


def action_tokens(trajectory: Trajectory) -> int:
    """Tokens that the policy sampled in the whole episode."""
    return sum(len(step.ids_T) for step in trajectory.steps)


def length(trajectory: Trajectory, unit: Unit) -> int:
    return action_tokens(trajectory) if unit == "action_tokens" else len(trajectory.steps)


def plus(outcome: Reward, *terms: Reward) -> Reward:
    """The sum of an outcome and shaping terms."""
    return lambda trajectory: outcome(trajectory) + sum(term(trajectory) for term in terms)


def weighted(weight: float, term: Reward) -> Reward:
    return lambda trajectory: weight * term(trajectory)


def overlong_penalty(n: int, *, limit: int, buffer: int, factor: float = 1.0, floor: bool = True) -> float:
    """DAPO's soft overlong penalty: min(-(n - (limit - buffer)) / buffer * factor, 0).

    With `floor` it is at least -factor. Linear, not exponential: limit 10, buffer 4 gives n = 6 -> 0,
    7 -> -0.25, 8 -> -0.5, 10 -> -1.
    """
    penalty = min(-(n - (limit - buffer)) / buffer * factor, 0.0)
    return max(penalty, -factor) if floor else penalty


def overlong(
    *, limit: int, buffer: int, factor: float = 1.0, unit: Unit = "action_tokens", floor: bool = True
) -> Reward:
    """`overlong_penalty` of an episode's action tokens (or steps)."""
    if not 0 < buffer <= limit:
        raise ConfigError(f"reward.overlong: buffer={buffer} must be above 0 and at most limit={limit}")
    return lambda trajectory: overlong_penalty(
        length(trajectory, unit), limit=limit, buffer=buffer, factor=factor, floor=floor
    )


def excess_penalty(n: int, *, target: int, rate: float = 0.05, cap: float = 0.5) -> float:
    """-rate for every unit above the target, at most `cap`: target 10, n = 8 -> 0, 14 -> -0.2."""
    return -min(rate * max(0, n - target), cap)


def excess(*, target: int, rate: float = 0.05, cap: float = 0.5, unit: Unit = "action_tokens") -> Reward:
    return lambda trajectory: excess_penalty(length(trajectory, unit), target=target, rate=rate, cap=cap)


def sigmoid_length(outcome: Reward, *, target: int, tau: float, unit: Unit = "action_tokens") -> Reward:
    """R sigma(-(n - target) / tau). It halves R at the target: place the target beyond wanted lengths."""
    return lambda trajectory: outcome(trajectory) / (1 + exp((length(trajectory, unit) - target) / tau))


def invalid_actions(trajectory: Trajectory) -> int:
    """Messages in which nothing could be executed."""
    return sum(bool(step.action.error) for step in trajectory.steps)


def format_score(*, think: bool, valid: int, invalid: int, boxed: bool = False) -> float:
    """0.3 [think block] + 0.1 valid calls - 0.2 invalid ones + 0.2 [boxed answer], clipped to [0, 1].

    Clipped, because otherwise it pays for many calls.
    """
    return min(1.0, max(0.0, 0.3 * think + 0.1 * valid - 0.2 * invalid + 0.2 * boxed))


def tool_score(*, used_needed: bool, duplicates: int, unknown: int) -> float:
    """0.1 [a needed tool was used] - 0.05 consecutive duplicates - 0.3 calls of unknown tools, in [-1, 1]."""
    return min(1.0, max(-1.0, 0.1 * used_needed - 0.05 * duplicates - 0.3 * unknown))


def message_format(trajectory: Trajectory) -> float:
    """`format_score` of an episode: tool calls, messages without a legal action, thinking, a boxed answer."""
    return format_score(
        think=any(_thought(step) for step in trajectory.steps),
        valid=sum(len(step.action.tool_calls) for step in trajectory.steps if not step.action.error),
        invalid=invalid_actions(trajectory),
        boxed=any("\\boxed{" in step.text for step in trajectory.steps),
    )


def _thought(step: Step) -> bool:
    """Whether the message holds a finished think block: in its text, or split off by the chat template."""
    return "</think>" in step.text or bool(step.thinking and step.text.strip())


def tool_use(trajectory: Trajectory) -> float:
    """`tool_score` of an episode: calls that equal the one before them, and calls of tools that do not exist.

    The task's `meta["needed_tools"]` names the tools of which one should be used; without it any call counts.
    """
    calls = [call for step in trajectory.steps for call in step.action.tool_calls]
    known = {tool.get("function", tool).get("name") for tool in trajectory.prompt.tools}
    needed = set(trajectory.task.meta.get("needed_tools", ())) or {call.name for call in calls}
    return tool_score(
        used_needed=any(call.name in needed for call in calls),
        duplicates=sum(a == b for a, b in pairwise(calls)),
        unknown=sum(bool(known) and call.name not in known for call in calls),
    )


def per_illegal_step(penalty: float) -> StepTerm:
    """A fixed amount for every message without a legal action, at its step, e.g. -0.1 (GiGPO)."""

    def by_step(trajectory: Trajectory) -> Float[np.ndarray, "K"]:
        return penalty * np.array([bool(step.action.error) for step in trajectory.steps], np.float64)

    return by_step
