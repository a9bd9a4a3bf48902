"""A source that remembers: it wraps another source and keeps the skill bank of Skill-SD beside it.

    next      summaries that finished become visible; plans come from the inner source. Rollouts see no skill, unless
              the rules put their task's into their prompts
    teacher   the opening of the teacher's context: the plain prompt with one skill, one for a whole group
    observe   the mean group return is credited to the skill that taught; episodes go to the summariser

A task without skills has no teacher: `teacher` gives None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxagent.plan import Plan
from jaxagent.skills.bank import Skill, SkillBank
from jaxagent.skills.prompt import full_text, inject
from jaxagent.skills.retrieve import explores, pick_ucb
from jaxagent.skills.summarise import SummariserPool, summary_payload
from jaxagent.stage import Source
from jaxagent.types import Group, Metrics, Prompt, Task, Trajectory

SHOWN = "skill:"  # label of a plan with a skill in its prompt, before the skill's id


def best_and_worst(group: Group) -> list[Trajectory]:
    """The episodes worth a lesson: the best, and the worst if it is worse. Ties go to the first rollout."""
    if not group.trajectories:
        return []
    best = max(group.trajectories, key=lambda trajectory: trajectory.reward)
    worst = min(group.trajectories, key=lambda trajectory: trajectory.reward)
    return [best, worst] if worst.reward < best.reward else [best]


@dataclass(frozen=True)
class SkillRules:
    """c: UCB's exploration weight. scope: which tasks share a buffer. text: how a skill is written out.

    max_chars: a longer text is cut at its end: what does not fit is the lesson's loss, never the episode's.
    in_rollouts: rollouts have the skill in their prompt (skill-augmented GRPO; a teacher that samples).
    weights:  whose parameters sample with it ("reference": those of the stage's start).
    """

    c: float = 1.0
    scope: Callable[[Task], str] = lambda task: task.task_id
    select: Callable[[Group], Sequence[Trajectory]] = best_and_worst
    text: Callable[[Skill], str] = full_text
    max_chars: int = 4000
    in_rollouts: bool = False
    weights: str = "current"

    def lesson(self, skill: Skill) -> str:
        return self.text(skill)[: self.max_chars]


class SkillSource:
    """Implements Source. Call `teacher` from the stage's Teacher; picks hold until the next `next`. A skill that was in
    a prompt is known by its plan's label, whatever was asked for since."""

    def __init__(self, inner: Source, bank: SkillBank, pool: SummariserPool, rules: SkillRules | None = None):
        self.inner, self.bank, self.pool = inner, bank, pool
        self.rules = rules or SkillRules()
        self._picks: dict[str, Skill | None] = {}

    def next(self, iteration: int) -> Sequence[Plan] | Sequence[Group]:
        for summary in self.pool.collect():
            if summary.skill is not None:
                self.bank.add(summary.key, summary.skill)
        self._picks = {}
        work = self.inner.next(iteration)
        if not self.rules.in_rollouts:
            return work
        return [self._shown(item) if isinstance(item, Plan) else item for item in work]  # type: ignore[return-value]

    def teacher(self, trajectory: Trajectory) -> Prompt | None:
        """The trajectory's opening with its task's skill in it, or None if there is no skill yet."""
        skill = self._pick(self.rules.scope(trajectory.task))
        return None if skill is None else inject(trajectory.prompt, skill, text=self.rules.lesson)

    def _shown(self, plan: Plan) -> Plan:
        """The plan with its task's skill in the prompt, if there is one."""
        skill = self._pick(self.rules.scope(plan.task))
        if skill is None:
            return plan
        before = plan.prompt

        def prompt(opening: Prompt) -> Prompt:
            opening = opening if before is None else before(opening)
            return inject(opening, skill, text=self.rules.lesson)

        return replace(plan, prompt=prompt, label=f"{SHOWN}{skill.skill_id}", weights=self.rules.weights)

    def opening(self, task: Task, prompt: Prompt) -> Prompt:
        """The opening with the best skill that the task's buffer has proven, to measure what skills are worth."""
        skills = self.bank.skills(self.rules.scope(task))
        tried = [skill for skill in skills if skill.retrievals]
        if not tried:
            return prompt
        best = max(tried, key=lambda skill: skill.mean_return)
        return inject(prompt, best, text=self.rules.lesson)

    def observe(self, groups: Sequence[Group]) -> Metrics:
        taught = explored = 0
        for group in groups:
            key = self.rules.scope(group.task)
            skill = self._played(key, group) if self.rules.in_rollouts else self._pick(key)
            if skill is not None and group.trajectories:
                taught += 1
                explored += explores(self.bank.skills(key), skill)
                mean = sum(trajectory.reward for trajectory in group.trajectories) / len(group.trajectories)
                self.bank.credit(key, skill.skill_id, mean)
            for trajectory in self.rules.select(group):
                self.pool.submit(key, summary_payload(trajectory))
        return {
            **self.inner.observe(groups),
            **self.pool.metrics(),
            "skills/size": float(len(self.bank)),
            "skills/taught_frac": taught / max(1, len(groups)),
            "skills/explore_frac": explored / max(1, taught),
        }

    def state(self) -> Mapping[str, Any]:
        picks = {key: None if skill is None else skill.skill_id for key, skill in self._picks.items()}
        return {
            "inner": self.inner.state(),
            "bank": self.bank.state(),
            "pending": self.pool.state(),
            "picks": picks,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.inner.restore(state["inner"])
        self.bank.restore(state["bank"])
        self.pool.restore(state["pending"])
        self._picks = {
            key: next((skill for skill in self.bank.skills(key) if skill.skill_id == picked), None)
            for key, picked in state["picks"].items()
        }

    def close(self) -> None:
        self.pool.close()
        self.inner.close()

    def _played(self, key: str, group: Group) -> Skill | None:
        """The skill that the group had in its prompt; None too if it was evicted since."""
        labels = {trajectory.extra.get("label", "") for trajectory in group.trajectories}
        return next((skill for skill in self.bank.skills(key) if f"{SHOWN}{skill.skill_id}" in labels), None)

    def _pick(self, key: str) -> Skill | None:
        """One skill a task and iteration, whoever asks first."""
        if key not in self._picks:
            self._picks[key] = pick_ucb(self.bank.skills(key), self.bank.retrievals(key), c=self.rules.c)
        return self._picks[key]
