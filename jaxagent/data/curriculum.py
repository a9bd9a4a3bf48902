"""Which tasks an iteration works on, by what the policy can do: learnability, failures that return, difficulty levels.

In: a list of tasks, and each iteration's groups. Out: plans, drawn with probabilities that follow from successes s of n
episodes of a task, p = (s + 1) / (n + 2):

    p        0      .25    .5     .9
    p(1-p)   0      .1875  .25    .09      + floor .01, normalised:  .0176  .3480  .4582  .1762

A task that nobody solved returns with more weight until it is solved or `max_age` iterations have passed. Levels of
difficulty open one after another. Success is the environment's verdict, never the shaped return; evaluations draw their
tasks elsewhere. Draws depend on the seed, their number and the counts alone, which are state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from pydantic import Field, model_validator

from jaxagent.data.tasks import fingerprint, task_names
from jaxagent.errors import ConfigError, DataError
from jaxagent.plan import Plan
from jaxagent.records import Record
from jaxagent.types import Group, Metrics, Task

BINS = 5  # of the histogram of p

Counts = Float[np.ndarray, "P"]


class CurriculumOptions(Record):
    """weight: of a task, as a function of p. floor: added to every weight. min_prob: least probability of an open task.

    fail_boost: factor on the probability of a task that was just failed; it falls to 1 over max_age iterations.
    start_difficulty: tasks up to it are open at first; 0 opens all. promote_at: success rate, over the last `window`
    groups of the hardest open level, that opens the next one.
    memory: successes and episodes are multiplied by it every iteration; below 1 the old policy's are forgotten.
    """

    weight: Literal["learnability", "expected", "azr", "r_zero", "uniform"] = "learnability"
    floor: float = Field(0.01, ge=0)
    min_prob: float = Field(0.0, ge=0, lt=1)
    fail_boost: float = Field(2.0, ge=1)
    max_age: int = Field(10, ge=1)
    start_difficulty: int = Field(0, ge=0)
    promote_at: float = Field(0.6, gt=0, le=1)
    window: int = Field(16, ge=1)
    memory: float = Field(1.0, gt=0, le=1)

    @model_validator(mode="after")
    def _opens(self) -> CurriculumOptions:
        given = sorted(self.model_fields_set & {"promote_at", "window"})
        if given and not self.start_difficulty:
            raise ValueError(
                f"{', '.join(given)}: read with start_difficulty above 0, 0 opens every task; drop them"
            )
        return self


# --- weights ------------------------------------------------------------------------------------------------


def posterior_mean(solved: Counts, played: Counts) -> Counts:
    """Mean of Beta(s + 1, n - s + 1): 1 of 8 -> .2, never played -> .5."""
    return (solved + 1.0) / (played + 2.0)


def learnability(p: Counts) -> Counts:
    """p (1 - p): the variance of the outcome, 0 where nothing can be learnt."""
    return p * (1.0 - p)


def expected_learnability(solved: Counts, played: Counts) -> Counts:
    """E[p (1 - p)] under Beta(a, b) = ab / ((a + b)(a + b + 1)): a = 2, b = 8 -> .1455."""
    a, b = solved + 1.0, played - solved + 1.0
    return a * b / ((a + b) * (a + b + 1.0))


def azr(p: Counts) -> Counts:
    """Absolute Zero's reward of who proposes a task: 1 - p, and 0 for what is always or never solved."""
    return np.where((p > 0) & (p < 1), 1.0 - p, 0.0)


def r_zero(p: Counts) -> Counts:
    """R-Zero's reward of who proposes a task: 1 - 2 |p - 1/2|."""
    return 1.0 - 2.0 * np.abs(p - 0.5)


WEIGHTS: Mapping[str, Callable[[Counts, Counts], Counts]] = {
    "learnability": lambda solved, played: learnability(posterior_mean(solved, played)),
    "expected": expected_learnability,
    "azr": lambda solved, played: azr(posterior_mean(solved, played)),
    "r_zero": lambda solved, played: r_zero(posterior_mean(solved, played)),
    "uniform": lambda solved, played: np.ones_like(played),
}


def probabilities(weight: Counts, *, floor: float = 0.0, min_prob: float = 0.0) -> Counts:
    """Proportional to weight + floor, then mixed with the uniform distribution so that none is below min_prob."""
    raised = weight + floor
    if not raised.sum() > 0:
        raised = np.ones_like(raised)
    return min_prob + (1.0 - min_prob * raised.size) * raised / raised.sum()


# --- the source ---------------------------------------------------------------------------------------------


class CurriculumSource:
    """A stage's source of plans: `tasks` different tasks a draw (all of them first, if it is more), by probability."""

    def __init__(
        self, pool: Sequence[Task], options: CurriculumOptions, *, tasks: int, rollouts: int, seed: int = 0
    ):
        names = task_names(pool, tasks=tasks, rollouts=rollouts)
        if options.min_prob * len(pool) > 1:
            raise ConfigError(
                f"curriculum.min_prob={options.min_prob} for each of {len(pool)} tasks adds up to more than 1; lower "
                f"it to at most {1 / len(pool):g}"
            )
        self._pool, self._options, self._tasks, self._rollouts = tuple(pool), options, tasks, rollouts
        self._seed, self._fingerprint = seed, fingerprint(names)
        self._index = {name: number for number, name in enumerate(names)}
        self._difficulty = np.array([task.difficulty for task in pool])
        self._levels = sorted(set(self._difficulty.tolist()))
        start = options.start_difficulty or self._levels[-1]
        if start < self._levels[0]:
            raise ConfigError(
                f"curriculum.start_difficulty={start} opens no task; the list has difficulties {self._levels}"
            )
        self._level = max(level for level in self._levels if level <= start)
        self._recent: deque[float] = deque(maxlen=options.window)
        self._solved, self._played = np.zeros(len(pool)), np.zeros(len(pool))
        self._seen = np.zeros(len(pool), bool)
        self._failed: dict[int, int] = {}  # task -> iterations since it was failed
        self._draws = 0

    def next(self, iteration: int) -> list[Plan]:
        return self.draw()

    def draw(self) -> list[Plan]:
        """The next tasks, whatever the iteration: a refill asks more than once in one."""
        rng = np.random.default_rng([self._seed, self._draws])
        self._draws += 1
        chosen: list[int] = []
        open_, p = self.distribution()
        while len(chosen) < self._tasks:
            some = min(self._tasks - len(chosen), len(open_))
            chosen += rng.choice(open_, some, replace=False, p=p).tolist()
        return [Plan(self._pool[index], self._rollouts) for index in chosen]

    def distribution(self) -> tuple[np.ndarray, Counts]:
        """(open tasks, their probabilities) of the first of a draw."""
        options = self._options
        open_ = np.flatnonzero(self._difficulty <= self._level)
        weight = WEIGHTS[options.weight](self._solved[open_], self._played[open_]) + options.floor
        boost = [self._boost(index) for index in open_.tolist()]
        return open_, probabilities(weight * boost, min_prob=options.min_prob)

    def observe(self, groups: Sequence[Group]) -> Metrics:
        options = self._options
        self._solved *= options.memory
        self._played *= options.memory
        self._failed = {index: age + 1 for index, age in self._failed.items() if age + 1 < options.max_age}
        for group in groups:
            self._learn(group)
        full = len(self._recent) == options.window
        if full and np.mean(self._recent) >= options.promote_at and self._level < self._levels[-1]:
            self._level = min(level for level in self._levels if level > self._level)
            self._recent.clear()
        return self._metrics()

    def _learn(self, group: Group) -> None:
        outcomes = [trajectory.success for trajectory in group.trajectories if not trajectory.status.dropped]
        if group.task.task_id not in self._index or not outcomes:
            return
        index = self._index[group.task.task_id]
        self._solved[index] += sum(outcomes)
        self._played[index] += len(outcomes)
        self._seen[index] = True
        if any(outcomes):
            self._failed.pop(index, None)
        else:
            self._failed[index] = 0
        if self._difficulty[index] == self._level:
            self._recent.append(float(np.mean(outcomes)))

    def _boost(self, index: int) -> float:
        if index not in self._failed:
            return 1.0
        left = 1.0 - self._failed[index] / self._options.max_age
        return 1.0 + (self._options.fail_boost - 1.0) * left

    def _metrics(self) -> Metrics:
        open_, p = self.distribution()
        entropy = float(-(p * np.log(np.maximum(p, 1e-30))).sum())
        estimate = posterior_mean(self._solved[self._seen], self._played[self._seen])
        counts, _ = np.histogram(estimate, BINS, (0.0, 1.0))
        share = counts / max(1, counts.sum())
        return {
            "curriculum/entropy": entropy / np.log(len(open_)) if len(open_) > 1 else 1.0,
            "curriculum/never_seen": float((~self._seen).sum()),
            "curriculum/failed": float(len(self._failed)),
            "curriculum/difficulty": float(self._level),
            **{f"curriculum/p_below_{(i + 1) / BINS:g}": float(share[i]) for i in range(BINS)},
        }

    def state(self) -> Mapping[str, Any]:
        return {
            "fingerprint": self._fingerprint,
            "seed": self._seed,
            "draws": self._draws,
            "solved": self._solved.tolist(),
            "played": self._played.tolist(),
            "seen": self._seen.tolist(),
            "failed": sorted(self._failed.items()),
            "level": int(self._level),
            "recent": list(self._recent),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken; refuses another list of tasks or another seed."""
        for name, mine in (("fingerprint", self._fingerprint), ("seed", self._seed)):
            if state.get(name) != mine:
                raise DataError(
                    f"the checkpoint was written with curriculum {name} {state.get(name)!r}, this run has {mine!r}; "
                    "resume with the same tasks and seed, or start another run folder"
                )
        self._draws, self._level = int(state["draws"]), int(state["level"])
        self._solved, self._played = np.array(state["solved"]), np.array(state["played"])
        self._seen = np.array(state["seen"], bool)
        self._failed = {int(index): int(age) for index, age in state["failed"]}
        self._recent = deque(state["recent"], self._options.window)

    def close(self) -> None:
        """Nothing is held."""
