"""Dynamic sampling (DAPO, 2503.14476): go on drawing tasks until enough groups say which rollouts are better.

    wanted 4, batches of 4 tasks with 1, 2, 1 groups that vary -> 3 batches

In: the groups of an iteration so far. Out: the next batch's plans, or none. What the surplus and the groups without
variance become is credit's (credit/filters.py); every rollout of every batch is counted as submitted all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxagent.credit.filters import Informative
from jaxagent.errors import ConfigError, DivergenceError
from jaxagent.plan import Plan
from jaxagent.stage import Returns
from jaxagent.types import Group, Metrics


@dataclass(frozen=True)
class Refill:
    """A `FollowUp`. It holds no state: how many batches there were follows from the groups.

    draw:   the next batch of `batch` plans, each of one group.
    wanted: groups that an iteration needs; informative: which groups count; returns: sets R, if that depends on it.
    batches: at most so many, the first one included. partial: then train on what there is; else raise.
    """

    draw: Callable[[], Sequence[Plan]]
    batch: int
    wanted: int
    informative: Informative
    returns: Returns | None = None
    batches: int = 10
    partial: bool = True

    def __post_init__(self) -> None:
        if self.batch < 1 or self.wanted < 1 or self.batches < 1:
            raise ConfigError(
                f"a refill with batch={self.batch}, wanted={self.wanted}, batches={self.batches}: expected 1 or more"
            )

    def __call__(self, groups: Sequence[Group]) -> Sequence[Plan]:
        found = self.found(self.returns(groups) if self.returns else groups)
        if found >= self.wanted:
            return ()
        if self.used(groups) < self.batches:
            return self.draw()
        if self.partial:
            return ()
        raise DivergenceError(
            f"{self.used(groups)} batches of {self.batch} tasks gave {found} of {self.wanted} groups whose rollouts "
            "differ; the tasks are too hard or too easy for this policy. Raise max_gen_batches, change the tasks, or "
            "set on_exhausted: partial"
        )

    def found(self, groups: Sequence[Group]) -> int:
        return sum(map(self.informative, groups))

    def used(self, groups: Sequence[Group]) -> int:
        return len(groups) // self.batch

    def metrics(self, groups: Sequence[Group]) -> Metrics:
        """refill/*, of an iteration's groups with their returns."""
        found = self.found(groups)
        return {
            "refill/batches": float(self.used(groups)),
            "refill/informative": float(found),
            "refill/surplus": float(max(0, found - self.wanted)),
            "refill/missing": float(max(0, self.wanted - found)),
        }
