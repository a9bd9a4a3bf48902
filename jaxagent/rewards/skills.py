"""SAGE's skill-integrated return (2512.17102): a chain is paid for making a skill that helps, and for using it.

    R_p = r_p + b 1[r_p = 1] u_p                     u_p: p uses a function of an earlier position
              + b 1[r_p = 1] 1[r_q = 1, q uses p's]  for some later q: the generation bonus
    an episode without code: R_p = -1 instead

    (r1, r2, u)   (0,1,1) -> (0,2)   (1,1,0) -> (1,1)   (1,1,1) -> (2,2)   (1,0,.) -> (1,0)        for b = 1

In: the groups of all positions (credit/chain.py pairs their episodes). Out: the same with returns and `extra["skills"]`
set, without the episodes whose generation bonus is unknown because a later position of their chain was dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxagent.credit.chain import ChainKey, chain_key, cut, linked
from jaxagent.rewards.returns import PARTS
from jaxagent.skills.functions import carried, defined, used
from jaxagent.stage import Returns, Reward
from jaxagent.types import Dropped, Group, Metrics, Trajectory

SKILLS = "skills"  # key of `Trajectory.extra`: what an episode made and used
CUT = "chain_cut"  # why an episode is dropped whose chain broke off later


@dataclass(frozen=True)
class SkillPay:
    """bonus: b; 0 pays the outcome alone. made_needs_success: the factor 1[r_p = 1] of the generation bonus.

    no_code: return of an episode that never wrote anything to run.
    """

    bonus: float = 1.0
    made_needs_success: bool = True
    no_code: float = -1.0


def skill_integrated(outcome: Reward, pay: SkillPay | None = None) -> Returns:
    """outcome: r, what an episode earns by itself; whether it is solved (r = 1) is the environment's verdict."""
    pay = pay or SkillPay()

    def returns(groups: Sequence[Group]) -> list[Group]:
        paid: dict[tuple[ChainKey, int], Trajectory] = {}
        for key, chain in linked(groups).items():
            paid |= {(key, position): t for position, t in _paid(chain, outcome, pay).items()}
        broken = cut(groups) if pay.bonus else set()
        return [_with(group, paid, broken) for group in groups]

    return returns


def _paid(chain: Mapping[int, Trajectory], outcome: Reward, pay: SkillPay) -> dict[int, Trajectory]:
    """The episodes of one chain with their returns, by position."""
    order = sorted(chain)
    libraries = {p: carried([chain[q] for q in order if q < p]) for p in order}
    uses = {p: used(chain[p], libraries[p]) for p in order}
    helped = {  # tasks whose functions helped to solve a later one
        function.task_id
        for p in order
        if chain[p].success
        for function in libraries[p]
        if function.name in uses[p]
    }
    result = {}
    for p in order:
        episode = chain[p]
        made = episode.task.task_id in helped and (episode.success or not pay.made_needs_success)
        parts = {
            "outcome": float(outcome(episode)),
            "skill_made": pay.bonus * made,
            "skill_used": pay.bonus * bool(episode.success and uses[p]),
        }
        if not wrote_code(episode):
            parts = {"outcome": pay.no_code, "skill_made": 0.0, "skill_used": 0.0}
        facts = {
            "library": len(libraries[p]),
            "defined": len(defined(episode, libraries[p])),
            "used": uses[p],
        }
        extra = {**episode.extra, PARTS: parts, SKILLS: facts}
        result[p] = replace(episode, reward=sum(parts.values()), extra=extra)
    return result


def wrote_code(episode: Trajectory) -> bool:
    """Whether any message held something to run, whatever became of it."""
    return any(step.action.text.strip() or step.action.tool_calls for step in episode.steps)


def _with(group: Group, paid: Mapping[tuple[ChainKey, int], Trajectory], broken: set[ChainKey]) -> Group:
    kept = [t for t in group.trajectories if chain_key(t) not in broken]
    lost = tuple(
        Dropped(t.task.task_id, t.rollout, CUT, "a later episode of its chain was dropped")
        for t in group.trajectories
        if chain_key(t) in broken
    )
    return replace(
        group,
        trajectories=tuple(paid.get((chain_key(t), group.position), t) for t in kept),
        dropped=group.dropped + lost,
    )


def skill_metrics(groups: Sequence[Group]) -> Metrics:
    """What an iteration's episodes made and used, and how each position of the chains did."""
    metrics: Metrics = {}
    for position in sorted({group.position for group in groups}):
        episodes = [t for group in groups if group.position == position for t in group.trajectories]
        episodes = [t for t in episodes if SKILLS in t.extra]
        if episodes:
            facts = [t.extra[SKILLS] for t in episodes]
            found = _of_position(episodes, facts, later=position > 0)
            metrics |= {f"chain/{position}/{name}": value for name, value in found.items()}
    lost = sum(dropped.reason == CUT for group in groups for dropped in group.dropped)
    return {**metrics, "chain/cut": float(lost)}


def _of_position(
    episodes: Sequence[Trajectory], facts: Sequence[Mapping[str, Any]], *, later: bool
) -> Metrics:
    found = {
        "success": np.mean([t.success for t in episodes]),
        "reward": np.mean([t.reward for t in episodes]),
        "steps": np.mean([len(t.steps) for t in episodes]),
        "tokens": np.mean([sum(step.ids_T.size for step in t.steps) for t in episodes]),
        "no_code_frac": np.mean([not wrote_code(t) for t in episodes]),
        "functions": np.mean([fact["defined"] for fact in facts]),
    }
    if later:
        found |= {
            "library": np.mean([fact["library"] for fact in facts]),
            "used_frac": np.mean([bool(fact["used"]) for fact in facts]),
            "used_and_solved_frac": np.mean(
                [bool(fact["used"]) and t.success for fact, t in zip(facts, episodes)]
            ),
            "undefined_frac": np.mean([any(r.exec_status.failed for _, r in t.before) for t in episodes]),
        }
    return {name: float(value) for name, value in found.items()}
