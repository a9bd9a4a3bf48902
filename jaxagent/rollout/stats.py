"""What a rollout's groups look like in numbers. Also the conservation check: nothing is lost uncounted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from jaxagent.errors import RolloutError
from jaxagent.rollout.explore import FORCED
from jaxagent.types import ExecStatus, Group, Metrics, Status, Stop


def rollout_metrics(
    groups: Sequence[Group], *, submitted: int, retries: int, held_in: int = 0, held_out: int = 0
) -> Metrics:
    """Counts (sum to `submitted`, else RolloutError), lengths, failure rates and seconds. Names: rollout/…

    held_in, held_out: episodes of groups that play on from one iteration into the next:
                submitted + held_in = kept + dropped + held_out.

    truncated:  fraction of messages cut by their token limit. 1.0 means that no action can ever be complete.
    exec_fail:  fraction of executed actions that failed or held nothing to execute.
    agent_frac: sampled tokens of all tokens.
    forced_tools: fraction of messages that began with a tool that was drawn, if there are any.
    """
    kept = [trajectory for group in groups for trajectory in group.trajectories]
    reasons = Counter(dropped.reason for group in groups for dropped in group.dropped)
    if submitted + held_in != len(kept) + reasons.total() + held_out:
        raise RolloutError(
            f"{submitted} episodes submitted, {held_in} held before, {len(kept)} kept, {dict(reasons)} dropped, "
            f"{held_out} held"
        )
    steps = [step for trajectory in kept for step in trajectory.steps]
    executed = [step for step in steps if step.exec_status is not ExecStatus.NONE]
    sampled = sum(len(step.ids_T) for step in steps)
    tokens = sum(len(segment.ids_T) for trajectory in kept for segment in trajectory.segments)
    metrics = {
        "submitted": submitted,
        "kept": len(kept),
        "dropped": reasons.total(),
        "retries": retries,
        "turns": _ratio(len(steps), len(kept)),
        "sampled_tokens": sampled,
        "tokens": tokens,
        "agent_frac": _ratio(sampled, tokens),
        "truncated": _ratio(sum(step.stop is not Stop.STOP for step in steps), len(steps)),
        "exec_fail": _ratio(sum(step.exec_status.failed for step in executed), len(executed)),
        "success": _ratio(sum(trajectory.success for trajectory in kept), len(kept)),
        "env_s": sum(float(trajectory.extra.get("env_s", 0)) for trajectory in kept),
        "generate_s": sum(float(trajectory.extra.get("generate_s", 0)) for trajectory in kept),
    }
    for status in (Status.DONE, Status.STEP_LIMIT, Status.LENGTH):
        share = _ratio(sum(trajectory.status is status for trajectory in kept), len(kept))
        metrics[f"status/{status.value}"] = share
    if forced := sum(len(trajectory.extra.get(FORCED, ())) for trajectory in kept):
        metrics["forced_tools"] = _ratio(forced, len(steps))
    if held_in or held_out:
        metrics |= {"held_in": held_in, "held_out": held_out}
    metrics |= {f"dropped/{reason}": count for reason, count in sorted(reasons.items())}
    return {f"rollout/{name}": float(value) for name, value in metrics.items()}


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
