"""What the log says about groups and advantages. Every mean of nothing is left out, never NaN.

Names: reward/*, group/*, adv/*, step/*, and those of credit functions. `group_metrics` sees what was rolled out,
`credit_metrics` what it is given: before or after a filter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from jaxagent.credit.group import returns, survivors, zero_variance
from jaxagent.credit.gvpo import failed_step
from jaxagent.rewards.returns import PARTS
from jaxagent.types import Credited, Group, Metrics, Trajectory


def group_metrics(groups: Sequence[Group]) -> Metrics:
    """Returns and their spread within groups, over survivors."""
    alive = [survivors(group) for group in groups]
    alive = [group for group in alive if group]
    if not alive:
        return {"group/count": 0.0}
    rewards = [returns(group) for group in alive]
    success = [np.array([t.success for t in group]) for group in alive]
    every = np.concatenate(rewards)
    return {
        "group/count": float(len(alive)),
        "group/size_mean": float(np.mean([r.size for r in rewards])),
        "group/singleton_frac": float(np.mean([r.size == 1 for r in rewards])),
        "group/zero_std_frac": float(np.mean([zero_variance(r) for r in rewards])),
        "group/all_pass_frac": float(np.mean([s.all() for s in success])),
        "group/all_fail_frac": float(np.mean([not s.any() for s in success])),
        "group/std_mean": float(np.mean([r.std() for r in rewards])),
        "reward/mean": float(every.mean()),
        "reward/min": float(every.min()),
        "reward/max": float(every.max()),
        "reward/success": float(np.concatenate(success).mean()),
        **part_metrics([trajectory for group in alive for trajectory in group]),
    }


def lost_metrics(before: Sequence[Group], after: Sequence[Group]) -> Metrics:
    """Episodes that the reward has dropped (a judge gave no answer), by reason; those that never ended are counted as
    rollout/dropped."""

    def reasons(groups: Sequence[Group]) -> Counter[str]:
        return Counter(dropped.reason for group in groups for dropped in group.dropped)

    lost = reasons(after) - reasons(before)
    if not lost:
        return {}
    by_reason = {f"reward/dropped/{reason}": float(count) for reason, count in sorted(lost.items())}
    return {"reward/dropped": float(lost.total()), **by_reason}


def part_metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """Means of what the returns are made of (`extra["reward_parts"]`), over the episodes that have the part."""
    parts = means(trajectory.extra.get(PARTS, {}) for trajectory in trajectories)
    return {f"reward/{name}": value for name, value in parts.items()} | _shares(trajectories)


def means(records: Iterable[Mapping[str, float]]) -> Metrics:
    """The mean of every name, over the records that have it."""
    found: dict[str, list[float]] = {}
    for record in records:
        for name, value in record.items():
            found.setdefault(name, []).append(value)
    return {name: float(np.mean(values)) for name, values in found.items()}


def _shares(trajectories: Sequence[Trajectory]) -> Metrics:
    """How much of the returns is shaping (by size), and how far a judge scores above the environment's verdicts."""
    parts = [(t.extra.get(PARTS, {}), t.success) for t in trajectories]
    outcome = sum(abs(p["outcome"]) for p, _ in parts if "shaping" in p)
    shaping = sum(abs(p["shaping"]) for p, _ in parts if "shaping" in p)
    gaps = [p["judge"] - solved for p, solved in parts if "judge" in p]
    return {
        **({"reward/shaping_share": shaping / (outcome + shaping)} if outcome + shaping else {}),
        **({"reward/judge_gap": float(np.mean(gaps))} if gaps else {}),
    }


def credit_metrics(credited: Sequence[Credited]) -> Metrics:
    """Advantages over trained tokens (a step weighs as many tokens as it sampled), failed steps, and what the credit
    function has measured itself."""
    steps = [step for item in credited for step in item.trajectory.steps]
    if not steps:
        return {"adv/trajectories": float(len(credited))}
    value_X = np.concatenate([item.advantage_K for item in credited]).astype(np.float64)
    token_X = np.array([step.ids_T.size for step in steps], np.float64)
    fail_X = np.array([failed_step(step) for step in steps])
    total = max(token_X.sum(), 1.0)
    return {
        "adv/trajectories": float(len(credited)),
        "adv/mean": float((value_X * token_X).sum() / total),
        "adv/abs_mean": float((np.abs(value_X) * token_X).sum() / total),
        "adv/min": float(value_X.min()),
        "adv/max": float(value_X.max()),
        "adv/positive_frac": float((token_X * (value_X > 0)).sum() / total),
        "adv/zero_frac": float((token_X * (value_X == 0)).sum() / total),
        "step/fail_rate": float(fail_X.mean()),
        "step/fail_token_frac": float((token_X * fail_X).sum() / total),
        **means(item.measured for item in credited),
    }
