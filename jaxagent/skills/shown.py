"""Every episode with skills in its prompt, and a bank that grows where the agent is weak: SkillRL's source of plans.

    next      plans whose opening gets the skills that its request retrieves, in training as at inference
    observe   counts successes by kind of task; every `every` iterations, kinds below `threshold` get new skills

What is measured are the training episodes since the last time, never a test split: no verdict of it reaches the bank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxagent.auxlm.background import Background
from jaxagent.credit.group import survivors
from jaxagent.data.iteration import InFlight
from jaxagent.plan import Plan
from jaxagent.skills.evolve import WRITE
from jaxagent.skills.library import Library, Mistake, Principle, full_library_text
from jaxagent.skills.mine import episode_record
from jaxagent.skills.prompt import add_lesson
from jaxagent.skills.request import Asked, request_of
from jaxagent.skills.retrieve import Likeness
from jaxagent.stage import Source
from jaxagent.types import Group, Metrics, Prompt, Task, Trajectory

MOST_MISTAKES = 200  # that a bank holds


@dataclass(frozen=True)
class LibraryRules:
    """top_k, floor: see Library.retrieve. every: iterations between updates. most: new skills of one update.

    examples: episodes of either outcome that the writer sees of a kind. max_chars: a longer lesson is cut at its end.
    """

    likeness: Likeness
    top_k: int = 6
    floor: float = 0.4
    threshold: float = 0.4
    every: int = 5
    most: int = 3
    examples: int = 5
    kind: Callable[[Task], str] = lambda task: task.type
    text: Callable[[Sequence[Principle], Sequence[Mistake]], str] = full_library_text
    asked: Asked = request_of
    max_chars: int = 4000


@dataclass
class Record:
    """Episodes of one kind since the last update; only the first few are kept whole."""

    played: int = 0
    solved: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)
    successes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.solved / max(1, self.played)

    def add(self, trajectory: Trajectory, rules: LibraryRules) -> None:
        self.played += 1
        self.solved += trajectory.success
        kept = self.successes if trajectory.success else self.failures
        if len(kept) < rules.examples:
            kept.append(episode_record(trajectory, rules.asked))


class LibrarySource:
    """Implements Source."""

    def __init__(self, inner: Source, library: Library, writer: Background, rules: LibraryRules):
        self.inner, self.library, self.writer, self.rules = inner, library, writer, rules
        self._records: dict[str, Record] = {}
        self._flight = InFlight()

    def next(self, iteration: int) -> Sequence[Plan] | Sequence[Group]:
        self._flight.asked(iteration)
        work = self.inner.next(iteration)
        plans = [item for item in work if isinstance(item, Plan)]
        return [replace(plan, prompt=self.lesson) for plan in plans] if plans else work

    def lesson(self, prompt: Prompt) -> Prompt:
        """The opening with the skills that its request retrieves; unchanged if there are none."""
        rules = self.rules
        found = self.library.retrieve(rules.asked(prompt), rules.likeness, k=rules.top_k, floor=rules.floor)
        text = rules.text(*found)[: rules.max_chars]
        return add_lesson(prompt, text) if text else prompt

    def opening(self, task: Task, prompt: Prompt) -> Prompt:
        return self.lesson(prompt)

    def observe(self, groups: Sequence[Group]) -> Metrics:
        for trajectory in (t for group in groups for t in survivors(group)):
            kind = self.rules.kind(trajectory.task)
            self._records.setdefault(kind, Record()).add(trajectory, self.rules)
        added = weak = 0
        if (self._flight.present + 1) % self.rules.every == 0:
            below = sorted(kind for kind, r in self._records.items() if r.rate < self.rules.threshold)
            weak, added = len(below), self._grow(below)
            self._records = {}
        self._flight.observed()
        return {
            **self.inner.observe(groups),
            **self.writer.metrics(),
            "skillrl/skills": float(len(self.library.principles)),
            "skillrl/mistakes": float(len(self.library.mistakes)),
            "skillrl/weak_kinds": float(weak),
            "skillrl/added": float(added),
        }

    def state(self) -> Mapping[str, Any]:
        return {
            "inner": self.inner.state(),
            "library": self.library.state(),
            "records": {kind: vars(record) for kind, record in self._records.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._flight.clear()
        self.inner.restore(state["inner"])
        self.library.restore(state["library"])
        self._records = {kind: Record(**record) for kind, record in state["records"].items()}

    def close(self) -> None:
        self.writer.close()
        self.inner.close()

    def _grow(self, kinds: Sequence[str]) -> int:
        """Ask for skills of the weak kinds, the weakest first; at most `most` new ones, whatever was written."""
        kinds = sorted(kinds, key=lambda kind: self._records[kind].rate)
        answers = self.writer.ask(WRITE, [self._payload(kind) for kind in kinds])
        added = 0
        for kind, answer in zip(kinds, answers):
            for skill in answer.skills if answer is not None else ():
                if added < self.rules.most:
                    added += self.library.add_skill(kind, skill.title, skill.principle, skill.when_to_apply)
            for mistake in answer.common_mistakes if answer is not None else ():
                if len(self.library.mistakes) < MOST_MISTAKES:
                    self.library.add_mistake(
                        mistake.description, mistake.why_it_happens, mistake.how_to_avoid
                    )
        return added

    def _payload(self, kind: str) -> dict[str, Any]:
        record = self._records[kind]
        return {
            "kind": kind,
            "success_rate": round(record.rate, 3),
            "failures": record.failures,
            "successes": record.successes,
            "titles": [skill.title for skill in self.library.by_kind.get(kind, [])],
            "most": self.rules.most,
        }
