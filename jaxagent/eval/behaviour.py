"""How the agent behaves and what it costs, beyond success. Read from the steps; no environment is asked.

Names follow LOOP's analysis (2502.01600): failed steps, several code blocks in one turn, look-ups of
documentation, assumptions and dummy values in the text, and giving up on an endpoint that failed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from jaxagent.credit.gvpo import failed_step
from jaxagent.eval.usage import usage
from jaxagent.types import ExecStatus, Metrics, Status, Step, Trajectory

_FENCE = re.compile(r"^\s*```\w*\s*$", re.MULTILINE)
_ENDPOINT = re.compile(r"\bapis\.(\w+)\.(\w+)")
_ASSUME = re.compile(r"\bassum(?:e|ed|ing)\b", re.IGNORECASE)
_DUMMY = re.compile(r"\bdummy\b", re.IGNORECASE)


def endpoints(step: Step) -> set[str]:
    """What a step calls: `apis.<app>.<method>` in its code, or the names of its tool calls."""
    in_code = {f"{app}.{method}" for app, method in _ENDPOINT.findall(step.action.text)}
    return in_code | {call.name for call in step.action.tool_calls}


def failed_and_recovered(steps: Sequence[Step]) -> tuple[int, int]:
    """Endpoints that newly failed, and failed ones that a later successful step called again.

    A failing step adds what it calls to the open set, a succeeding one takes what it calls out of it.
    """
    open_set: set[str] = set()
    failed = recovered = 0
    for step in steps:
        called = endpoints(step)
        if failed_step(step):
            failed += len(called - open_set)
            open_set |= called
        elif step.exec_status is ExecStatus.OK:
            recovered += len(called & open_set)
            open_set -= called
    return failed, recovered


def behaviour_metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """Rates a turn and counts a rollout. `give_up` is left out where no endpoint failed; nothing without turns."""
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    if not steps:
        return {}
    rollouts, turns = len(trajectories), len(steps)
    pairs = [failed_and_recovered(trajectory.steps) for trajectory in trajectories]
    failed, recovered = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    metrics: Metrics = {
        "exec_fail": sum(failed_step(step) for step in steps) / turns,
        "multi_cell": sum(len(_FENCE.findall(step.text)) > 2 for step in steps) / turns,
        "doc_lookups": sum(name.startswith("api_docs.") for s in steps for name in endpoints(s)) / rollouts,
        "assume": sum(len(_ASSUME.findall(step.text)) for step in steps) / rollouts,
        "dummy": sum(len(_DUMMY.findall(step.text)) for step in steps) / rollouts,
    }
    if failed:
        metrics["give_up"] = (failed - recovered) / failed
    return metrics


def cost_metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """Turns, sampled tokens and all tokens a rollout; share of rollouts that ended at a limit.

    Tokens are left out if nobody counted those of one rollout.
    """
    if not trajectories:
        return {}
    n = len(trajectories)
    limits = (Status.STEP_LIMIT, Status.LENGTH)
    metrics: Metrics = {
        "turns": sum(len(t.steps) for t in trajectories) / n,
        "at_limit": sum(t.status in limits for t in trajectories) / n,
    }
    counts = [usage(trajectory) for trajectory in trajectories]
    known = [count for count in counts if count is not None]
    if len(known) == n:
        metrics["action_tokens"] = sum(sum(count.sampled) for count in known) / n
        metrics["total_tokens"] = sum(sum(count.processed) for count in known) / n
    return metrics


def inference_flops(parameters: int, *, layers: int, width: int, lengths: Sequence[int]) -> float:
    """FLOPs to process sequences once each with a KV cache: 2 N tokens + 4 layers width ctx over every position.

    2 FLOPs a multiply-add. 7e9 parameters, 28 layers, width 3584, 1,200 tokens: 1.68e13 + 2.8925e11.
    """
    linear = 2.0 * parameters * sum(lengths)
    context = sum(length * (length + 1) // 2 for length in lengths)
    return linear + 4.0 * layers * width * context
