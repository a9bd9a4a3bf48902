"""Half of a task's rollouts with a skill, half without: SIRI's source of plans. In: another source. Out: paired plans.

    warm-up      plans as they come; successful plain episodes are counted and stored
    after it     every `mine_every` iterations skills are mined; a task whose request resembles a skill is played as
                 skill | plain under one group name, so that both share a baseline. Any other task is played plain
    observe      Delta = mean outcome with the skill - mean without decides what becomes of the skill

Rollout i of both halves draws from the same random stream. An odd rollout is plain. A half without a survivor proves
nothing. Deltas are of outcomes in [0, 1], whatever scale and shaping the return has.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from jaxagent.credit.group import survivors
from jaxagent.data.iteration import InFlight
from jaxagent.rewards.returns import mapped
from jaxagent.skills.intrinsic import IntrinsicBank, IntrinsicSkill, State
from jaxagent.skills.mine import Miner, episode_record
from jaxagent.skills.prompt import add_lesson
from jaxagent.skills.request import Requests
from jaxagent.skills.retrieve import Likeness
from jaxagent.stage import Plan, Returns, Reward, Source
from jaxagent.types import Group, Metrics, Prompt, Task, Trajectory

SKILL, PLAIN = (
    "skill",
    "plain",
)  # labels of the halves; that of the skill half goes on with its skill: "skill:s3"
DELTA = "skill_delta"  # key of `Trajectory.extra`, in both halves


def branch(trajectory: Trajectory) -> str:
    """Its half; whatever is not played with a skill is plain."""
    return SKILL if _label(trajectory)[0] == SKILL else PLAIN


def skill_of(group: Group) -> str | None:
    """The id of the skill that its skill half was played with."""
    return next((name for half, _, name in map(_label, group.trajectories) if half == SKILL), None)


def _label(trajectory: Trajectory) -> tuple[str, str, str]:
    return str(trajectory.extra.get("label", "")).partition(":")


def delta_of(group: Group, outcome: Reward) -> float | None:
    """Mean outcome with the skill minus mean without; None where a half has no survivor.

    With 1, 1, 0, 1 and without 1, 0, 0, 0: 0.75 - 0.25 = 0.5.
    """
    halves: dict[str, list[float]] = {SKILL: [], PLAIN: []}
    for trajectory in survivors(group):
        halves[branch(trajectory)].append(min(1.0, max(0.0, float(outcome(trajectory)))))
    if not halves[SKILL] or not halves[PLAIN]:
        return None
    return sum(halves[SKILL]) / len(halves[SKILL]) - sum(halves[PLAIN]) / len(halves[PLAIN])


def halves(groups: Sequence[Group]) -> list[Group]:
    """Every group taken apart: those with a skill, those without; a half that nobody played is left out."""
    parts = [
        replace(group, trajectories=tuple(t for t in group.trajectories if branch(t) == name))
        for group in groups
        for name in (SKILL, PLAIN)
    ]
    return [part for part in parts if part.trajectories]


def with_deltas(returns: Returns, outcome: Reward) -> Returns:
    """`returns`, and every trajectory of a group with two halves marked with its Delta."""
    return _Marked(returns, outcome)


@dataclass(frozen=True)
class _Marked:
    """Closes the returns that it wraps (a judge)."""

    returns: Returns
    outcome: Reward

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        out = []
        for group in self.returns(groups):
            delta = delta_of(group, self.outcome)
            out += [group] if delta is None else mapped([group], lambda t, d=delta: _marked(t, d))
        return out

    def close(self) -> None:
        close = getattr(self.returns, "close", None)
        if close is not None:
            close()


def _marked(trajectory: Trajectory, delta: float) -> Trajectory:
    return replace(trajectory, extra={**trajectory.extra, DELTA: delta})


def full_skill(skill: IntrinsicSkill) -> str:
    """Condition and strategy, for models that read."""
    return f"A skill that may help here.\nWhen: {skill.condition}\nHow:\n{skill.strategy}"


def strategy_alone(skill: IntrinsicSkill) -> str:
    """For small models that know actions and observations only."""
    return skill.strategy


@dataclass(frozen=True)
class PairedRules:
    """warmup_min, warmup_max: iterations. The warm-up ends with n_req successes, an outcome of success_at or more each.

    mine_calls x mine_batch: stored episodes that a mining reads, so many a call. stored: how many are kept, the newest.
    floor, slot: see IntrinsicBank.retrieve. max_chars: a longer skill is cut at its end.
    lambda_max, lambda_warm: strength of internalisation, and iterations that it takes to reach it.
    """

    outcome: Reward
    likeness: Likeness
    warmup_min: int = 30
    warmup_max: int = 50
    n_req: int = 64
    success_at: float = 1.0
    mine_every: int = 10
    mine_calls: int = 4
    mine_batch: int = 4
    stored: int = 512
    floor: float = 0.4
    slot: float = 0.5
    lambda_max: float = 0.1
    lambda_warm: int = 50
    text: Callable[[IntrinsicSkill], str] = full_skill
    max_chars: int = 4000

    def strength(self, iteration: int, since: int | None) -> float:
        """lambda(k) = lambda_max clip((k - k_0) / k_w, 0, 1), k_0 the first iteration after the warm-up.

        lambda_max .1, k_0 = k_w = 50: lambda(50), (60), (75), (100) = 0, .02, .05, .1.
        """
        if since is None:
            return 0.0
        return self.lambda_max * min(1.0, max(0.0, (iteration - since) / max(self.lambda_warm, 1)))

    def lesson(self, skill: IntrinsicSkill) -> str:
        return self.text(skill)[: self.max_chars]


class PairedSource:
    """Implements Source. `since` is the first iteration after the warm-up, None within it."""

    def __init__(
        self,
        inner: Source,
        bank: IntrinsicBank,
        miner: Miner,
        requests: Requests,
        rules: PairedRules,
        *,
        seed: int = 0,
    ):
        self.inner, self.bank, self.miner, self.requests, self.rules = inner, bank, miner, requests, rules
        self.seed = seed
        self.since: int | None = None
        self.noted: Metrics = {}  # what the stage's samples report of themselves
        self._successes = self._mined = 0
        self._flight = InFlight()
        self._stored: deque[dict[str, Any]] = deque(maxlen=rules.stored)

    @property
    def strength(self) -> float:
        """lambda of the present iteration."""
        return self.rules.strength(self._flight.present, self.since)

    def next(self, iteration: int) -> Sequence[Plan] | Sequence[Group]:
        self._flight.asked(iteration)
        work = self.inner.next(iteration)
        if self.since is not None and (iteration - self.since) % self.rules.mine_every == 0:
            self._mine(iteration)
        out: list[Plan] = []
        for number, plan in enumerate(work):
            if not isinstance(plan, Plan):
                return work  # ready groups: nothing is rolled out
            out += self._planned(plan, iteration, number)
        return out

    def observe(self, groups: Sequence[Group]) -> Metrics:
        deltas, moves = [], Counter[State]()
        for group in groups:
            for trajectory in survivors(group):
                if branch(trajectory) == PLAIN:
                    self._keep(trajectory)
            delta = next((t.extra[DELTA] for t in group.trajectories if DELTA in t.extra), None)
            if (skill := skill_of(group)) is not None and delta is not None:
                before, after = self.bank.evaluate(skill, delta)
                moves[after] += before is not after
                deltas.append(delta)
        metrics = {**self._metrics(deltas, moves, len(groups)), **self.inner.observe(groups)}
        self._mined = 0
        done = self._flight.present + 1
        enough = self._successes >= self.rules.n_req and done >= self.rules.warmup_min
        if self.since is None and (enough or done >= self.rules.warmup_max):
            self.since = done
        self._flight.observed()
        return metrics

    def opening(self, task: Task, prompt: Prompt) -> Prompt:
        """The opening with the skill that its request retrieves, to measure what the bank is worth."""
        skill = self.bank.retrieve(self.requests.asked(prompt), self.rules.likeness, floor=self.rules.floor)
        return prompt if skill is None else add_lesson(prompt, self.rules.lesson(skill))

    def state(self) -> Mapping[str, Any]:
        return {
            "inner": self.inner.state(),
            "bank": self.bank.state(),
            "requests": self.requests.state(),
            "since": self.since,
            "successes": self._successes,
            "stored": list(self._stored),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._flight.clear()
        self._mined = 0
        self.inner.restore(state["inner"])
        self.bank.restore(state["bank"])
        self.requests.restore(state["requests"])
        self.since, self._successes = state["since"], int(state["successes"])
        self._stored = deque(state["stored"], maxlen=self.rules.stored)

    def close(self) -> None:
        self.miner.close()
        self.inner.close()

    def _planned(self, plan: Plan, iteration: int, number: int) -> list[Plan]:
        """number: of the plan within the iteration."""
        place = f"{iteration}/{number}/{plan.task.task_id}"
        skill = self._retrieved(plan.task, place) if plan.n > 1 and plan.branch is None else None
        if skill is None:
            return [plan]
        lesson, half = self.rules.lesson(skill), plan.n // 2
        name = plan.group or f"pair{number + 1}"

        def prompt(opening: Prompt) -> Prompt:
            return add_lesson(opening if plan.prompt is None else plan.prompt(opening), lesson)

        return [
            replace(plan, n=half, prompt=prompt, label=f"{SKILL}:{skill.skill_id}", group=name),
            replace(plan, n=plan.n - half, label=PLAIN, group=name),
        ]

    def _retrieved(self, task: Task, place: str) -> IntrinsicSkill | None:
        if self.since is None or not len(self.bank):
            return None
        draw = Random(f"{self.seed}/slot/{place}")
        request = self.requests.of(task)
        rules = self.rules
        return self.bank.retrieve(request, rules.likeness, floor=rules.floor, slot=rules.slot, draw=draw)

    def _keep(self, trajectory: Trajectory) -> None:
        self.requests.learn(trajectory)
        if self.rules.outcome(trajectory) >= self.rules.success_at:
            self._successes += 1
            self._stored.append(episode_record(trajectory, self.requests.asked))

    def _mine(self, iteration: int) -> None:
        """A random part of the stored episodes; every mining draws anew."""
        rules, draw = self.rules, Random(f"{self.seed}/mine/{iteration}")
        chosen = draw.sample(list(self._stored), min(len(self._stored), rules.mine_calls * rules.mine_batch))
        size = rules.mine_batch
        batches = [chosen[start : start + size] for start in range(0, len(chosen), size)]
        for tasks, skill in self.miner.mine(batches) if batches else ():
            self._mined += self.bank.add(skill.condition, skill.strategy, tasks)

    def _metrics(self, deltas: Sequence[float], moves: Counter[State], groups: int) -> Metrics:
        return {
            **{f"siri/{state}": float(count) for state, count in self.bank.count().items()},
            "siri/promoted": float(moves[State.ACTIVE]),
            "siri/dismissed": float(moves[State.RETIRED]),
            "siri/mined": float(self._mined),
            "siri/paired_frac": len(deltas) / max(1, groups),
            "siri/delta": sum(deltas) / max(1, len(deltas)),
            "siri/gate_frac": sum(delta > 0 for delta in deltas) / max(1, len(deltas)),
            "siri/successes": float(self._successes),
            "siri/warm_up": float(self.since is None),
            "siri/lambda": self.strength,
            **self.noted,
            **self.miner.metrics(),
        }
