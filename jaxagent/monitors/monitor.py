"""Watches a stage's metrics and evaluations. In: numbers of each iteration. Out: alarms that are news.

A monitor acts on nothing: it says which alarm the run counts as a collapse (`collapse`), and the runtime acts. All it
remembers is in `state`, so that a run that goes on sounds the same alarms at the same iterations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxagent.metrics import lookup
from jaxagent.monitors.rules import RULES, Rule
from jaxagent.monitors.settings import AlarmConfig
from jaxagent.monitors.trends import WINDOW, fallen, outlier, parted
from jaxagent.types import Metrics

GRADIENT, HACKING, FALL = "grad_norm", "reward_hacking", "reward_collapse"
NORMS = 50  # gradient norms that are remembered
QUIET = 10  # iterations; what comes back sooner is no news


@dataclass(frozen=True)
class Alarm:
    """since: the stage's iteration, from 1, at which it began."""

    name: str
    message: str
    since: int


@dataclass(frozen=True)
class _Found:
    """What a rule sees in this iteration. `begun`: iterations ago."""

    seen: str
    causes: str
    remedy: str
    begun: int = 0


class Monitor:
    """An alarm is told once; again only after it was over for QUIET iterations or more."""

    def __init__(self, config: AlarmConfig | None = None):
        self.config = config or AlarmConfig()
        self._threshold: Mapping[str, float | None] = self.config.thresholds.model_dump()
        self.begin(rolls_out=True)

    def begin(self, *, rolls_out: bool) -> None:
        """A new stage: what was normal in the last one says nothing about it."""
        self._rolls_out = rolls_out
        self._number = 0
        self._first: dict[str, float] = {}
        self._norms: list[float] = []
        self._returns: list[float] = []  # of the last iterations
        self._best = -math.inf  # mean of the best WINDOW of them
        self._trained: list[float] = []  # mean returns since the last evaluation
        # Of the evaluations: (mean return in training, held-out success).
        self._curve: list[tuple[float, float]] = []
        self._since: dict[str, int] = {}  # alarms that sound
        self._heard: dict[str, int] = {}  # the last iteration in which each alarm sounded
        self._acted: set[str] = set()

    def check(self, metrics: Metrics) -> list[Alarm]:
        """Alarms that are news in this iteration, in the order in which to look into them."""
        self._number += 1
        values = dict(metrics)
        broken = sum(not math.isfinite(value) for value in metrics.values())
        if broken:
            values["metrics/nonfinite"] = float(broken)
        watched = {name: rule for name, rule in RULES.items() if self._rolls_out or rule.anywhere}
        found = {name: self._rule(name, rule, values) for name, rule in watched.items() if self._on(name)}
        found[GRADIENT] = self._gradient(values) if self._on(GRADIENT) else None
        found[FALL] = self._fall(values)
        if found.get("equal_rewards"):
            found["zero_variance"] = None
        return self._sound(found, keep={HACKING})

    def evaluated(self, success: float) -> list[Alarm]:
        """An evaluation within the stage: share of held-out tasks solved, greedily."""
        if self._trained:
            self._curve.append((sum(self._trained) / len(self._trained), success))
        self._trained = []
        points = int(self._threshold[HACKING] or 0)
        if not self._on(HACKING) or len(self._curve) < points:
            return []
        self._curve = self._curve[-points:]
        reward_X, success_X = zip(*self._curve)
        if not parted(reward_X, success_X):
            self._since.pop(HACKING, None)
            return []
        seen = (
            f"over the last {points} evaluations the return in training rose from {reward_X[0]:.3g} to "
            f"{reward_X[-1]:.3g} while held-out success went from {success_X[0]:.0%} to {success_X[-1]:.0%}"
        )
        causes = (
            "a reward that can be had without solving the task, shaping that is too large, or overfitting"
        )
        remedy = (
            "read the best-paid trajectories; cap the shaping, reward the environment's verdict, add tasks"
        )
        return self._sound({HACKING: _Found(seen, causes, remedy)}, keep=set(self._since))

    def collapse(self) -> Alarm | None:
        """An alarm that counts as a collapse and has sounded for `patience` iterations; each is given once."""
        for name in self.config.collapse:
            begun = self._since.get(name)
            if begun is None or name in self._acted or self._number - begun + 1 < self.config.patience:
                continue
            self._acted.add(name)
            return Alarm(name, f"{name} has lasted for {self._number - begun + 1} iterations", begun)
        return None

    @property
    def number(self) -> int:
        """Iterations of the stage that were checked."""
        return self._number

    @property
    def sounding(self) -> int:
        return len(self._since)

    def state(self) -> dict[str, Any]:
        return {
            "rolls_out": self._rolls_out,
            "number": self._number,
            "first": dict(self._first),
            "norms": list(self._norms),
            "returns": list(self._returns),
            "best": self._best if math.isfinite(self._best) else None,
            "trained": list(self._trained),
            "curve": [list(point) for point in self._curve],
            "since": dict(self._since),
            "heard": dict(self._heard),
            "acted": sorted(self._acted),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._rolls_out, self._number = bool(state["rolls_out"]), int(state["number"])
        self._first, self._since = dict(state["first"]), dict(state["since"])
        self._norms, self._returns, self._trained = (
            list(state[name]) for name in ("norms", "returns", "trained")
        )
        self._best = -math.inf if state["best"] is None else float(state["best"])
        self._curve = [(point[0], point[1]) for point in state["curve"]]
        self._heard, self._acted = dict(state["heard"]), set(state["acted"])

    def _on(self, name: str) -> bool:
        return self._threshold[name] is not None

    def _sound(self, found: Mapping[str, _Found | None], *, keep: set[str]) -> list[Alarm]:
        """What is news of what was found; alarms that were not found are over, unless kept."""
        off = {name: item for name, item in found.items() if item is not None}
        new = [name for name in off if name not in self._since]
        over = self._since.keys() - off.keys() - keep
        self._since = {name: begun for name, begun in self._since.items() if name not in over}
        self._acted -= over
        self._since |= {name: max(self._number - off[name].begun, 1) for name in new}
        heard = self._heard
        news = [name for name in new if name not in heard or self._number - heard[name] > QUIET]
        self._heard |= dict.fromkeys(self._since, self._number)
        return [Alarm(name, _words(off[name], self._since[name]), self._since[name]) for name in news]

    def _rule(self, name: str, rule: Rule, metrics: Metrics) -> _Found | None:
        value = next((v for metric in rule.metrics if (v := lookup(metrics, metric)) is not None), None)
        if value is None or not math.isfinite(value):
            return None
        first = self._first.setdefault(name, value) if rule.start else 1.0
        ratio = value / first if first else 1.0
        seen, threshold = ratio if rule.start else value, self._threshold[name]
        assert threshold is not None, "rules that are off are not asked"
        off = seen < threshold if rule.below else seen > threshold
        if not off and not (rule.reach and seen == threshold):
            return None
        beside = {key: lookup(metrics, metric) or 0.0 for key, metric in rule.beside.items()}
        return _Found(rule.seen.format(value=value, ratio=ratio, **beside), rule.causes, rule.remedy)

    def _gradient(self, metrics: Metrics) -> _Found | None:
        norm = lookup(metrics, "grad_norm")
        if norm is None:
            return None
        if not math.isfinite(norm):
            return _Found(
                "the gradient is not finite", "a policy that has diverged", "lower the learning rate"
            )
        if not self._rolls_out:
            return None
        past, self._norms = self._norms, [*self._norms, norm][-NORMS:]
        mean = outlier(past, norm, sigmas=self._threshold[GRADIENT] or 0.0)
        if mean is None:
            return None
        seen = f"gradient norm {norm:.3g} is an outlier (recent mean {mean:.3g})"
        causes = "an unusual batch, or the first sign of divergence"
        return _Found(
            seen, causes, "look at this batch; lower max_grad_norm, or skip such steps (grad_outlier_sigma)"
        )

    def _fall(self, metrics: Metrics) -> _Found | None:
        """The mean return of the last iterations against the best such mean of the stage."""
        value = lookup(metrics, "reward/mean")
        if not self._rolls_out or value is None or not math.isfinite(value):
            return None
        self._trained.append(value)
        self._returns = [*self._returns, value][-WINDOW:]
        if len(self._returns) < WINDOW:
            return None
        mean, share = sum(self._returns) / WINDOW, self._threshold[FALL]
        self._best = max(self._best, mean)
        if share is None or not fallen(mean, self._best, share=share):
            return None
        seen = f"the mean return fell to {mean:.3g}, from {self._best:.3g} at its best"
        causes = "a step too far (learning rate, a bad batch), or a policy that lost the format"
        remedy = "go back to a checkpoint and go on with a lower learning rate or a KL term"
        return _Found(seen, causes, remedy, begun=WINDOW - 1)


def _words(found: _Found, since: int) -> str:
    return f"{found.seen}, since iteration {since}. Usual causes: {found.causes}. Try: {found.remedy}."
