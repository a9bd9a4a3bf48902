"""The evaluations of a run: which are due when, under which rules, and what they gave. Starts no device.

start            before the first stage                     every split
<stage>:<n>      every `eval.every` iterations within one   the first split
<stage>          at a stage's end, if it asks for it        every split
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jaxagent.config import RunConfig
from jaxagent.eval.runner import EvalResult
from jaxagent.plan import Plan
from jaxagent.prepare import Prepared
from jaxagent.rollouts import Rollouts, Through
from jaxagent.stage import Rollout
from jaxagent.types import Group, Sampling, Task

START = "start"
EVAL_SEED = 1_000_003  # evaluations draw from streams that no training rollout uses


def measuring(
    rollouts: Rollouts, config: RunConfig, *, seed: int = EVAL_SEED, through: Through | None = None
) -> Rollout:
    """How plans are run to measure, in training and by `jaxagent eval` alike: the limits of the run's eval section, no
    quorum, for a cut straggler would count as not solved."""
    usual = rollouts.limits
    limits = replace(usual, max_steps=config.eval.max_steps or usual.max_steps)
    rules = replace(rollouts.rules, quorum=None)

    async def rollout(plans: Sequence[Plan], rule: Sampling) -> Sequence[Group]:
        collected = await rollouts.measure(
            plans, rule, seed=seed, limits=limits, rules=rules, through=through
        )
        return collected.groups

    return rollout


@dataclass(frozen=True)
class Due:
    """One moment at which the policy is measured, and on which splits."""

    when: str
    splits: tuple[str, ...]


class Evaluations:
    """`made` holds what was measured, in order; it is part of the checkpoint."""

    def __init__(self, prepared: Prepared):
        self._prepared, self._config = prepared, prepared.config.eval
        self.made: list[dict[str, Any]] = []

    def due_before(self, stage: int, iteration: int) -> Due | None:
        """What must be measured before this iteration and was not: the run's start, or the end of the stage before
        it, if the run was stopped in between."""
        if (stage, iteration) == (0, 0):
            when = START if self._config.at_start else ""
        elif iteration == 0 and self._prepared.config.all_stages[stage - 1].evaluate:
            when = self._prepared.entries[stage - 1].name
        else:
            when = ""
        return Due(when, self._config.splits) if when and when not in self.moments else None

    def due_within(self, stage: int, iteration: int) -> Due | None:
        """What should have been measured when so many iterations of the stage were done, and was not: a run that is
        asked to stop saves first."""
        due = self.due_after(stage, iteration, ended=False) if iteration else None
        return due if due is not None and due.when not in self.moments else None

    @property
    def moments(self) -> set[str]:
        """When there were evaluations."""
        return {item["when"] for item in self.made}

    def due_after(self, stage: int, number: int, *, ended: bool) -> Due | None:
        """What is measured after iteration `number` (from 1) of a stage."""
        name, every = self._prepared.entries[stage].name, self._config.every
        if ended:
            return (
                Due(name, self._config.splits) if self._prepared.config.all_stages[stage].evaluate else None
            )
        return Due(f"{name}:{number}", self._config.splits[:1]) if every and number % every == 0 else None

    def modes(self) -> list[Sampling]:
        """Greedy, and at temperature 1 if configured."""
        rule = replace(self._prepared.sampling, tool_epsilon=0.0)
        return [replace(rule, temperature=heat) for heat in ((0.0, 1.0) if self._config.sampled else (0.0,))]

    def tasks(self, split: str) -> Sequence[Task]:
        return self._prepared.tasks[split][: self._config.limit or None]

    def keep(self, when: str, result: EvalResult) -> None:
        """Remember the metrics, and write everything to the run folder."""
        name = f"{when.replace(':', '-')}-{result.split}-{result.mode}.json"
        result.write(Path(self._prepared.config.run_dir) / "evaluations" / name)
        self.made.append(
            {"when": when, "split": result.split, "mode": result.mode, "metrics": dict(result.metrics)}
        )

    def solved(self, when: str) -> float | None:
        """Share of the first split's tasks solved greedily at a moment, if that was measured."""
        split = self._config.splits[0] if self._config.splits else ""
        found = [e for e in self.made if (e["when"], e["split"], e["mode"]) == (when, split, "greedy")]
        return found[-1]["metrics"]["tgc"] / 100 if found and "tgc" in found[-1]["metrics"] else None

    def outcome(self) -> dict[str, Any]:
        """For result.json. "before" is the first full evaluation of the run, empty if there was but one; "after" the
        last."""
        moments = list(dict.fromkeys(item["when"] for item in self.made if ":" not in item["when"]))

        def at(when: str) -> Mapping[str, Any]:
            return {f"{e['split']}/{e['mode']}": e["metrics"] for e in self.made if e["when"] == when}

        return {
            "before": at(moments[0]) if len(moments) > 1 else {},
            "after": at(moments[-1]) if moments else {},
            "evaluations": self.made,
        }
