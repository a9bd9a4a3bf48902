"""Groups of which half was played with a skill and half without: which is which, and the difference Delta.

In: groups whose trajectories' labels name their half (skills/paired.py). Out: the halves apart, Delta of a group, and
returns that carry it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxagent.credit.group import survivors
from jaxagent.rewards.returns import mapped
from jaxagent.stage import Returns, Reward, close_held
from jaxagent.types import Group, Trajectory

# Labels of the halves; that of the skill half goes on with its skill: "skill:s3"
SKILL, PLAIN = "skill", "plain"
DELTA = "skill_delta"  # key of `Trajectory.extra`, in both halves


def branch(trajectory: Trajectory) -> str:
    """Its half; whatever is not played with a skill is plain."""
    return SKILL if _label(trajectory)[0] == SKILL else PLAIN


def skill_of(group: Group) -> str | None:
    """The id of the skill that its skill half was played with."""
    return next((name for half, _, name in map(_label, group.trajectories) if half == SKILL), None)


def _label(trajectory: Trajectory) -> tuple[str, str, str]:
    return str(trajectory.extra.get("label", "")).partition(":")


def delta_of(group: Group, outcome: Reward) -> float | None:
    """Mean outcome with the skill minus mean without; None where a half has no survivor.

    With 1, 1, 0, 1 and without 1, 0, 0, 0: 0.75 - 0.25 = 0.5.
    """
    halves: dict[str, list[float]] = {SKILL: [], PLAIN: []}
    for trajectory in survivors(group):
        halves[branch(trajectory)].append(min(1.0, max(0.0, float(outcome(trajectory)))))
    if not halves[SKILL] or not halves[PLAIN]:
        return None
    return sum(halves[SKILL]) / len(halves[SKILL]) - sum(halves[PLAIN]) / len(halves[PLAIN])


def halves(groups: Sequence[Group]) -> list[Group]:
    """Every group taken apart: those with a skill, those without; a half that nobody played is left out."""
    parts = [
        replace(group, trajectories=tuple(t for t in group.trajectories if branch(t) == name))
        for group in groups
        for name in (SKILL, PLAIN)
    ]
    return [part for part in parts if part.trajectories]


def with_deltas(returns: Returns, outcome: Reward) -> Returns:
    """`returns`, and every trajectory of a group with two halves marked with its Delta."""
    return _Marked(returns, outcome)


@dataclass(frozen=True)
class _Marked:
    """Closes the returns that it wraps (a judge)."""

    returns: Returns
    outcome: Reward

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        out = []
        for group in self.returns(groups):
            delta = delta_of(group, self.outcome)
            out += [group] if delta is None else mapped([group], lambda t, d=delta: _marked(t, d))
        return out

    def close(self) -> None:
        close_held(self.returns)


def _marked(trajectory: Trajectory, delta: float) -> Trajectory:
    return replace(trajectory, extra={**trajectory.extra, DELTA: delta})
