"""Chains of similar tasks: scenarios in seeded epochs, and rollouts that go on from task to task.

Every iteration takes some scenarios, and of each an ordered choice of tasks. All rollouts of a chain's first task are
planned at once; each survivor then goes on alone, with what its own earlier episodes hand on.

    scenario s, tasks a b c; length 2; rollouts 3; drawn c, a
    next        Plan(c, 3, position=0)                    rollouts 0, 1, 2; 1 is dropped
    follow_up   Plan(a, 1, first=0, position=1), Plan(a, 1, first=2, position=1)       one group of a: rollouts 0, 2
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxagent.credit.chain import linked
from jaxagent.data.tasks import Epochs, fingerprint
from jaxagent.errors import ConfigError
from jaxagent.plan import Plan
from jaxagent.types import Action, Group, Metrics, Prompt, Task, Trajectory


@dataclass(frozen=True)
class Handed:
    """What an episode starts with, from those before it: how its opening is rewritten, what is played before it."""

    prompt: Callable[[Prompt], Prompt]
    before: Callable[[Prompt], Sequence[Action]]


HandOn = Callable[[Sequence[Trajectory]], Handed]
"""The finished episodes of a chain, in order -> what the next one starts with."""


@dataclass(frozen=True)
class ChainShape:
    """chains of an iteration, rollouts of each, tasks in each."""

    chains: int
    rollouts: int
    length: int = 2


@dataclass(frozen=True)
class Chain:
    """tasks in the order in which they are played; first: number of the first rollout."""

    tasks: tuple[Task, ...]
    first: int


def scenarios(tasks: Sequence[Task], length: int) -> list[tuple[Task, ...]]:
    """The tasks of every scenario that has at least `length`, in the order of the list."""
    found: dict[str, list[Task]] = {}
    for task in tasks:
        if task.scenario:
            found.setdefault(task.scenario, []).append(task)
    long = [tuple(members) for members in found.values() if len(members) >= length]
    if not long:
        raise ConfigError(
            f"chains of {length} tasks need scenarios with so many; the {len(tasks)} tasks have {len(found)} scenarios "
            f"of at most {max(map(len, found.values()), default=0)}. Lower chain_len, or choose another environment"
        )
    return long


class ChainSource:
    """Implements Source; give `follow_up` to the stage too. A scenario drawn twice in an iteration goes on counting
    its rollouts, so that no two chains are taken for one."""

    def __init__(self, pool: Sequence[Task], shape: ChainShape, hand_on: HandOn, *, seed: int = 0):
        self.shape, self._hand_on, self._seed = shape, hand_on, seed
        self._scenarios = scenarios(pool, shape.length)
        names = [task.task_id for members in self._scenarios for task in members]
        self._epochs = Epochs(len(self._scenarios), seed=seed, fingerprint=fingerprint(names))
        self._chains: list[Chain] = []  # of this iteration

    def next(self, iteration: int) -> list[Plan]:
        drawn, again = [], Counter[int]()
        for index in self._epochs.take(self.shape.chains):
            members = self._scenarios[index]
            rng = np.random.default_rng([self._seed, iteration, index, again[index]])
            order = rng.permutation(len(members))[: self.shape.length].tolist()
            drawn.append(Chain(tuple(members[i] for i in order), again[index] * self.shape.rollouts))
            again[index] += 1
        self._chains = drawn
        return [Plan(chain.tasks[0], self.shape.rollouts, first=chain.first) for chain in drawn]

    def follow_up(self, groups: Sequence[Group]) -> list[Plan]:
        """The next position of every chain whose earlier episodes have all survived; none after the last."""
        position = 1 + max((group.position for group in groups), default=0)
        if position >= self.shape.length:
            return []
        chains = linked(groups)
        plans = []
        for chain in self._chains:
            task = chain.tasks[position]
            for number in range(chain.first, chain.first + self.shape.rollouts):
                episodes = chains.get((task.scenario, number), {})
                if len(episodes) < position:
                    continue
                handed = self._hand_on([episodes[earlier] for earlier in range(position)])
                plans.append(
                    Plan(
                        task,
                        1,
                        handed.prompt,
                        group=f"chain-{chain.first}",
                        position=position,
                        before=handed.before,
                        first=number,
                    )
                )
        return plans

    def observe(self, groups: Sequence[Group]) -> Metrics:
        return {"data/epoch": self._epochs.epoch + self._epochs.position / len(self._scenarios)}

    def state(self) -> Mapping[str, Any]:
        return self._epochs.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._epochs.restore(state)

    def close(self) -> None:
        """Nothing is held."""
