"""Alarms in words: what is wrong, and what to look at first (in the order in which faults are usually found).

In: the metrics of each iteration. Out: alarms that have newly gone off. A monitor never stops a run; the loop
shows its words and may act. Rules are data; thresholds are given by name, 0 turns one off. Supervised stages are
watched only for what is wrong anywhere: their entropy is meant to fall, their gradients vary with the data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxagent.errors import ConfigError
from jaxagent.metrics import lookup
from jaxagent.types import Metrics


@dataclass(frozen=True)
class Rule:
    """`metric` is found by `lookup`. `above`: off above the threshold, else below. `start`: as a multiple
    of the metric's first value in the stage. `anywhere`: also in stages that do not roll out.
    """

    metric: str
    threshold: float
    words: str
    above: bool = True
    start: bool = False
    anywhere: bool = False


RULES: dict[str, Rule] = {
    "equal_rewards": Rule(
        "group/zero_std_frac",
        0.999,
        "every group has equal rewards, so nothing can be learnt from this batch: the tasks are too easy or "
        "too hard for the policy, the reward is constant, or groups have one rollout",
    ),
    "zero_variance": Rule(
        "group/zero_std_frac",
        0.7,
        "{value:.0%} of the groups have equal rewards and teach nothing: choose tasks nearer to the policy's "
        "ability, or more rollouts a group",
    ),
    "singletons": Rule(
        "group/singleton_frac",
        0.5,
        "{value:.0%} of the groups have one surviving rollout and so no baseline: look at the reasons of "
        "dropped episodes, and at the group size",
    ),
    "truncation": Rule(
        "rollout/truncated",
        0.3,
        "{value:.0%} of the messages are cut by their token limit: raise it; a task that "
        "needs longer ones silently fails always",
    ),
    "length_explosion": Rule(
        "rollout/sampled_tokens",
        2.0,
        "{ratio:.1f} times as many tokens are sampled as at the start: look for repetition and for a reward "
        "that pays length",
        start=True,
    ),
    "failed_steps": Rule(
        "rollout/exec_fail",
        0.9,
        "{value:.0%} of the steps fail to execute: look at the parser and at the prompt",
    ),
    "entropy_collapse": Rule(
        "entropy",
        0.1,
        "entropy fell to {ratio:.0%} of its start: the policy samples one answer; lower the learning rate, "
        "or add an entropy bonus or a KL term",
        above=False,
        start=True,
    ),
    "mismatch": Rule(
        "mismatch/kl",
        0.1,
        "sampler and trainer disagree on the same tokens (KL {value:.3f}): look at dtype, temperature, top-p "
        "and at whether the decoder has the newest weights",
    ),
    "kl": Rule(
        "ratio/approx_kl",
        0.1,
        "the policy moved KL {value:.3f} within one iteration: lower the learning rate",
    ),
    "clip": Rule(
        "ratio/clip_frac_hi",
        0.3,
        "{value:.0%} of the tokens are clipped: lower the learning rate or the epochs",
    ),
    "mask_leak": Rule(
        "mask/obs_leak",
        0.0,
        "{value:.0f} trained tokens were not sampled by the policy: a bug",
        anywhere=True,
    ),
    "empty_batch": Rule(
        "skip/empty_batch",
        0.0,
        "no trajectory was left to train on, so there was no step: every advantage is 0 or was filtered",
        anywhere=True,
    ),
    "skipped": Rule(
        "skip/nonfinite",
        0.0,
        "{value:.0f} micro-batches had a loss or gradient that is not finite and were skipped",
        anywhere=True,
    ),
    "nonfinite": Rule("metrics/nonfinite", 0.0, "{value:.0f} metrics are NaN or infinite", anywhere=True),
}

GRAD = "grad_norm"
GRAD_SIGMA = 5.0


@dataclass(frozen=True)
class Alarm:
    name: str
    message: str


class Monitor:
    """Remembers a stage's first values and its gradient norms' spread. An alarm sounds once, until it is over."""

    def __init__(self, thresholds: Mapping[str, float] | None = None):
        self._threshold = {name: rule.threshold for name, rule in RULES.items()} | {GRAD: GRAD_SIGMA}
        for name, value in (thresholds or {}).items():
            if name not in self._threshold:
                raise ConfigError(f"unknown alarm {name!r}; known alarms: {', '.join(self._threshold)}")
            self._threshold[name] = value
        # An explicit 0 turns an alarm off; rules whose own threshold is 0 stay on.
        self._off = {name for name, value in (thresholds or {}).items() if value == 0}
        self.begin(rolls_out=True)

    def begin(self, *, rolls_out: bool) -> None:
        """A new stage: what was normal in the last one says nothing about it."""
        self._rolls_out = rolls_out
        self._first: dict[str, float] = {}
        self._norms: list[float] = []
        self._sounding: set[str] = set()

    def check(self, metrics: Metrics) -> list[Alarm]:
        """Alarms that this iteration's metrics newly set off."""
        watched = [
            name
            for name, rule in RULES.items()
            if name not in self._off and (self._rolls_out or rule.anywhere)
        ]
        found = [alarm for name in watched if (alarm := self._rule(name, metrics)) is not None]
        if GRAD not in self._off and (alarm := self._gradient(metrics)) is not None:
            found.append(alarm)
        if any(alarm.name == "equal_rewards" for alarm in found):
            found = [alarm for alarm in found if alarm.name != "zero_variance"]
        new = [alarm for alarm in found if alarm.name not in self._sounding]
        self._sounding = {alarm.name for alarm in found}
        return new

    def state(self) -> dict[str, Any]:
        return {
            "rolls_out": self._rolls_out,
            "first": dict(self._first),
            "norms": list(self._norms),
            "sounding": sorted(self._sounding),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._rolls_out = bool(state["rolls_out"])
        self._first = dict(state["first"])
        self._norms = list(state["norms"])
        self._sounding = set(state["sounding"])

    def _rule(self, name: str, metrics: Metrics) -> Alarm | None:
        rule = RULES[name]
        value = lookup(metrics, rule.metric)
        if value is None or not math.isfinite(value):
            return None
        first = self._first.setdefault(rule.metric, value) if rule.start else 1.0
        ratio = value / first if first else 1.0
        seen = ratio if rule.start else value
        off = seen > self._threshold[name] if rule.above else seen < self._threshold[name]
        return Alarm(name, rule.words.format(value=value, ratio=ratio)) if off else None

    def _gradient(self, metrics: Metrics, *, window: int = 50, least: int = 8) -> Alarm | None:
        """A norm more than so many standard deviations above the mean of the last ones."""
        norm = lookup(metrics, "grad_norm")
        if norm is None:
            return None
        past = self._norms
        if not math.isfinite(norm):
            return Alarm(GRAD, "the gradient is not finite; the step was not usable")
        if not self._rolls_out:
            return None
        mean = sum(past) / len(past) if past else 0.0
        std = math.sqrt(sum((x - mean) ** 2 for x in past) / len(past)) if past else 0.0
        limit = mean + self._threshold[GRAD] * max(std, 0.05 * mean)
        self._norms = [*past, norm][-window:]
        if len(past) < least or norm <= limit:
            return None
        return Alarm(
            GRAD, f"gradient norm {norm:.3g} is an outlier (recent mean {mean:.3g}): look at this batch"
        )
