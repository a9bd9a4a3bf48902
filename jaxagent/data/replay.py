"""Replay: credited trajectories of earlier iterations are trained on again beside the new ones (PER, 1511.05952).

    P(i) = (priority_i + 0.01)^alpha / sum                priority: |A|, the return R, or the same for all (uniform)
    w_i  = (N P(i))^-beta / max w                         beta rises linearly to 1 over the stage

    priorities 1, .5, .1   alpha .6   P = .5187 .3442 .1371        beta .4   w = .5874 .6920 1

A trajectory enters with the advantages that its group gave it when it was complete, and with the old log-probs of its
own time: the ratio of the loss to those is what corrects for its age. The weight scales its advantages. The oldest
leave first. What is drawn depends on (seed, iteration) and the buffer alone; the buffer is part of the source's state.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from jaxagent.credit.filters import magnitude
from jaxagent.data.rollout_codec import decode, encode
from jaxagent.errors import ConfigError
from jaxagent.plan import Plan
from jaxagent.stage import Filter, Source, Stage
from jaxagent.types import Credited, Group, Metrics

Priority = Literal["uniform", "advantage", "return"]
FLOOR = 0.01  # a trajectory of priority 0 is drawn now and then too

PRIORITIES: Mapping[str, Callable[[Credited], float]] = {
    "uniform": lambda item: 1.0,
    "advantage": magnitude,
    "return": lambda item: max(float(item.trajectory.reward), 0.0),
}


def probabilities(priority_N: Float[np.ndarray, "N"], alpha: float) -> Float[np.ndarray, "N"]:
    """P(i) proportional to (priority + 0.01)^alpha; alpha 0 is uniform."""
    scaled_N = (priority_N + FLOOR) ** alpha
    return scaled_N / scaled_N.sum()


def importance(probability_N: Float[np.ndarray, "N"], beta: float) -> Float[np.ndarray, "N"]:
    """(N P)^-beta, divided by its largest: what is drawn less often counts more. beta 1 undoes the priority in full."""
    weight_N = (probability_N.size * probability_N) ** -beta
    return weight_N / weight_N.max()


@dataclass(frozen=True)
class ReplayRules:
    """capacity: trajectories kept. fraction: share of replayed trajectories in an update. max_lag: in iterations.

    iterations: of the stage, over which beta rises to 1.
    """

    capacity: int
    fraction: float
    priority: Priority
    alpha: float
    beta: float
    max_lag: int
    iterations: int
    seed: int

    def beta_at(self, iteration: int) -> float:
        return self.beta + (1 - self.beta) * min(iteration / max(self.iterations - 1, 1), 1.0)


@dataclass(frozen=True)
class _Kept:
    """A trajectory in the buffer. data: encode(Credited), so that a resumed run draws the very same."""

    iteration: int
    priority: float
    data: bytes


class Replay:
    """The buffer. `mix` is the stage's filter: it hands on what is new and what was drawn."""

    def __init__(self, rules: ReplayRules):
        self.rules = rules
        self._kept: list[_Kept] = []
        self._iteration = 0
        self._metrics: Metrics = {}

    def end(self) -> None:
        """An iteration has been learnt from. (The source may be asked for later ones before that.)"""
        self._iteration += 1

    def mix(self, credited: Sequence[Credited]) -> list[Credited]:
        """`credited`, whose groups were complete, and trajectories of earlier iterations; keeps the new ones."""
        oldest = self._iteration - self.rules.max_lag
        self._kept = [kept for kept in self._kept if kept.iteration >= oldest]
        drawn = self._draw(len(credited))
        priority = PRIORITIES[self.rules.priority]
        self._kept += [_Kept(self._iteration, priority(item), encode(item)) for item in credited]
        self._kept = self._kept[-self.rules.capacity :]
        return [*credited, *drawn]

    def metrics(self) -> Metrics:
        """Of the last draw."""
        return {"replay/size": float(len(self._kept)), **self._metrics}

    def _draw(self, fresh: int) -> list[Credited]:
        """With replacement; never more than there are."""
        share = self.rules.fraction
        count = min(round(share / (1 - share) * fresh), len(self._kept))
        self._metrics = {"replay/drawn": float(count)}
        if not count:
            return []
        probability_N = probabilities(np.array([kept.priority for kept in self._kept]), self.rules.alpha)
        beta = self.rules.beta_at(self._iteration)
        weight_N = importance(probability_N, beta)
        rng = np.random.default_rng([self.rules.seed, self._iteration])
        index_R = rng.choice(len(self._kept), count, p=probability_N)
        lags = [self._iteration - self._kept[i].iteration for i in index_R]
        self._metrics |= {
            "replay/beta": beta,
            "replay/weight_mean": float(weight_N[index_R].mean()),
            "replay/lag_mean": float(np.mean(lags)),
            "replay/lag_max": float(max(lags)),
        }
        return [scaled(decode(self._kept[i].data), float(weight_N[i])) for i in index_R]

    def state(self) -> dict[str, Any]:
        kept = [[k.iteration, k.priority, base64.b64encode(k.data).decode()] for k in self._kept]
        return {"iteration": self._iteration, "kept": kept}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._iteration = state["iteration"]
        self._kept = [_Kept(when, priority, base64.b64decode(data)) for when, priority, data in state["kept"]]


def scaled(item: Credited, weight: float) -> Credited:
    """Advantages times the weight. The policy loss is linear in a positive factor of them, clipped or not."""
    factor = np.float32(weight)
    advantage_T = tuple(advantage_T * factor for advantage_T in item.advantage_T)
    return replace(item, advantage_K=item.advantage_K * factor, advantage_T=advantage_T)


class ReplaySource:
    """The stage's own source, and the buffer's place in the checkpoint."""

    def __init__(self, inner: Source, replay: Replay):
        self.inner, self.replay = inner, replay

    def next(self, iteration: int) -> Sequence[Plan] | Sequence[Group]:
        return self.inner.next(iteration)

    def observe(self, groups: Sequence[Group]) -> Metrics:
        self.replay.end()
        return {**self.inner.observe(groups), **self.replay.metrics()}

    def state(self) -> Mapping[str, Any]:
        return {"inner": self.inner.state(), "replay": self.replay.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.inner.restore(state["inner"])
        self.replay.restore(state["replay"])

    def close(self) -> None:
        self.inner.close()


def replayed(stage: Stage, rules: ReplayRules, *, to_sampler: bool = False) -> Stage:
    """The stage with a replay buffer behind its filter. to_sampler: its ratio is to the sampler's own log-probs."""
    if "old" not in stage.needs and not to_sampler:
        raise ConfigError(
            f"stage {stage.name}: replay without old log-probs has nothing to correct a trajectory's age by, every old "
            "one would count as if the present policy had sampled it; add 'old' to the stage's `needs`"
        )
    replay = Replay(rules)
    return replace(stage, source=ReplaySource(stage.source, replay), filter=_behind(stage.filter, replay))


def _behind(first: Filter | None, replay: Replay) -> Filter:
    return replay.mix if first is None else lambda credited: replay.mix(first(credited))
