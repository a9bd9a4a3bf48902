"""Chains: one rollout of every task of a chain in turn, and what they share.

A chain is known by its scenario and its rollout number, which is the same at every position. A chain of which a later
position was dropped is *cut*: what its earlier episodes would have earned there is unknown, which is not 0.

    position 0   rollouts 0 1 2 3        dropped 2
    position 1   rollouts 0 1   3        dropped 1      chains 0 and 3 are whole, 1 is cut, 2 never went on
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxagent.credit.group import returns, survivors, zero_variance
from jaxagent.types import Credited, Group, Trajectory

ChainKey = tuple[str, int]
"""(scenario, rollout number)."""


def chain_key(trajectory: Trajectory) -> ChainKey:
    return trajectory.task.scenario, trajectory.rollout


def linked(groups: Sequence[Group]) -> dict[ChainKey, dict[int, Trajectory]]:
    """The surviving episodes of every chain, by position."""
    chains: dict[ChainKey, dict[int, Trajectory]] = {}
    for group in sorted(groups, key=lambda group: group.position):
        for trajectory in survivors(group):
            chains.setdefault(chain_key(trajectory), {})[group.position] = trajectory
    return chains


def cut(groups: Sequence[Group]) -> set[ChainKey]:
    """Chains of which a position after the first was dropped."""
    return {
        (group.task.scenario, dropped.rollout)
        for group in groups
        if group.position
        for dropped in group.dropped
    }


def chain_mean(groups: Sequence[Group]) -> list[Credited]:
    """A = sum of the chain's returns - mean of those sums, shared by the chain's episodes (SAGE's chain reward).

    (R1, R2) = (2, 2), (1, 1), (0, 2), (1, 0): sums 4, 2, 2, 1, mean 2.25, A = 1.75, -.25, -.25, -1.25.
    The whole chains of one first group share the mean; others have no sum, and are left out.
    """
    chains, broken = linked(groups), cut(groups)
    credited = []
    for group in groups:
        if group.position:
            continue
        whole = [chains[chain_key(t)] for t in survivors(group) if chain_key(t) not in broken]
        sums_G = np.array([returns(tuple(chain.values())).sum() for chain in whole], np.float64)
        flat = zero_variance(sums_G)
        for chain, total in zip(whole, sums_G):
            advantage = 0.0 if flat else total - sums_G.mean()
            credited += [
                Credited(t, np.full(len(t.steps), advantage, np.float32)) for _, t in sorted(chain.items())
            ]
    return credited
