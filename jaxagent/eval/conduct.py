"""How the policy went about an iteration's episodes: does it repeat itself, which tools does it call, how long is it.

In: finished trajectories with their return set. Out: the numbers that alarms watch (monitors/), names loop/…, tools/…
and length/…; what cannot be said of these episodes is left out. Rates of failed steps are rollout/stats.py's.

    actions a a a b     longest run 3   consecutive duplicates 2   repeated 2-grams: aa aa ab, 1 of 3 was there before
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import groupby, pairwise

import numpy as np

from jaxagent.eval.behaviour import endpoints
from jaxagent.types import Metrics, Status, Step, Trajectory

LOOP = 3  # identical actions in a row that make an episode a looping one
LIMITS = (Status.STEP_LIMIT, Status.LENGTH)


def conduct_metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """All of this file's numbers, over the episodes in which the policy spoke."""
    spoken = [trajectory for trajectory in trajectories if trajectory.steps]
    if not spoken:
        return {}
    return {**_loops(spoken), **_tools(spoken), **_lengths(spoken)}


def longest_run(actions: Sequence[Hashable]) -> int:
    return max((sum(1 for _ in run) for _, run in groupby(actions)), default=0)


def consecutive_duplicates(actions: Sequence[Hashable]) -> int:
    """Actions that equal the one before them."""
    return sum(a == b for a, b in pairwise(actions))


def repeated_2grams(actions: Sequence[Hashable]) -> float:
    """Share of neighbouring pairs that occurred earlier in the episode; 0 without a pair."""
    pairs = list(pairwise(actions))
    return 1 - len(set(pairs)) / len(pairs) if pairs else 0.0


def tool_entropy(counts: Mapping[str, float | int], tools: int) -> float:
    """Entropy of the calls over the largest that `tools` (2 or more) tools allow: .6, .3, .1 of 3 gives .817."""
    share_X = np.array([count for count in counts.values() if count], np.float64)
    share_X /= share_X.sum()
    return abs(float(-(share_X * np.log(share_X)).sum() / math.log(tools)))


def correlation(a_N: Sequence[float | int], b_N: Sequence[float | int]) -> float | None:
    """Pearson's; None where one of the two does not vary."""
    a, b = np.array(a_N, np.float64), np.array(b_N, np.float64)
    a, b = a - a.mean(), b - b.mean()
    scale = math.sqrt(float((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 1e-12 else None


def action_of(step: Step) -> str:
    """What was asked of the environment, as one comparable text; a message without a legal action is its own text."""
    action = step.action
    if action.error or not (action.text or action.tool_calls):
        return step.text
    calls = [[call.name, call.arguments] for call in action.tool_calls]
    return action.text + (json.dumps(calls, sort_keys=True, default=str) if calls else "")


def _loops(spoken: Sequence[Trajectory]) -> Metrics:
    actions = [[action_of(step) for step in trajectory.steps] for trajectory in spoken]
    runs = [longest_run(episode) for episode in actions]
    return {
        "loop/run_mean": float(np.mean(runs)),
        "loop/run_max": float(max(runs)),
        "loop/looping_frac": float(np.mean([run >= LOOP for run in runs])),
        "loop/duplicates": float(np.mean([consecutive_duplicates(episode) for episode in actions])),
        "loop/repeated_2grams": float(np.mean([repeated_2grams(episode) for episode in actions])),
    }


def _tools(spoken: Sequence[Trajectory]) -> Metrics:
    """Of tool calls, and of `apis.<app>.<method>` in code. Unknown are calls of tools that the prompt does not name.

    The entropy is left out where only one tool is known: there is nothing to choose.
    """
    counts = Counter(name for t in spoken for step in t.steps for name in endpoints(step))
    if not counts:
        return {}
    known = {_name(tool) for trajectory in spoken for tool in trajectory.prompt.tools}
    calls = [(call.name, t) for t in spoken for step in t.steps for call in step.action.tool_calls]
    told = [name not in {_name(tool) for tool in t.prompt.tools} for name, t in calls if t.prompt.tools]
    tools = len(known | counts.keys())
    return {
        "tools/used": float(len(counts)),
        **({"tools/entropy_share": tool_entropy(counts, tools)} if tools > 1 else {}),
        **({"tools/unknown": float(np.mean(told))} if told else {}),
    }


def _name(tool: Mapping[str, object]) -> str:
    inner = tool.get("function", tool)
    return str(inner.get("name")) if isinstance(inner, Mapping) else ""


def _lengths(spoken: Sequence[Trajectory]) -> Metrics:
    length_N = [sum(len(step.ids_T) for step in trajectory.steps) for trajectory in spoken]
    metrics: Metrics = {
        "length/action_tokens": float(np.mean(length_N)),
        "length/at_limit": float(np.mean([trajectory.status in LIMITS for trajectory in spoken])),
    }
    related = correlation(length_N, [trajectory.reward for trajectory in spoken])
    return metrics if related is None else {**metrics, "length/reward_corr": related}
