"""Some rollouts of a task guided by experience, and learnt from as if they had not been: AgentEvolver's navigating.

    next      N_e = floor(eta N) rollouts open with a block of experiences, N - N_e plainly; one group, one baseline
    reopen    guided ones are put behind the plain opening, before anything of them is scored, and flagged for the boost
    observe   every `every` iterations a writer reads plain episodes of each task, and the pool grows

In: another source. Out: plans. Where nothing is alike the request all rollouts are plain. Inference needs no pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from jaxagent.auxlm.background import Background
from jaxagent.batch.boost import BOOST
from jaxagent.credit.group import survivors, whole_share
from jaxagent.data.iteration import InFlight
from jaxagent.errors import ConfigError
from jaxagent.plan import Plan
from jaxagent.rewards.returns import mapped
from jaxagent.rollout.renderer import Renderer
from jaxagent.rollout.review import REOPENED, plain_prompt, review
from jaxagent.skills.experience import EXPERIENCE, Experience, ExperiencePool, guidance, payload_of
from jaxagent.skills.mine import episode_record
from jaxagent.skills.prompt import add_lesson
from jaxagent.skills.request import Requests
from jaxagent.skills.retrieve import Likeness
from jaxagent.stage import Source
from jaxagent.types import Group, Metrics, Prompt, Task, Trajectory

GUIDED, PLAIN = "guided", "plain"  # labels of the plans of a group
Rounding = Literal["floor", "round"]


def guided_rollouts(n: int, eta: float, rounding: Rounding = "floor") -> int:
    """How many of n rollouts are guided. eta .6 of 8: 4, and 5 with the code's rounding (half to even: 4.5 -> 4)."""
    if n < 0 or not 0 <= eta <= 1:
        raise ConfigError(f"eta={eta} of {n} rollouts; expected a share from 0 to 1")
    return round(eta * n) if rounding == "round" else whole_share(eta, n)


def guided(trajectory: Trajectory) -> bool:
    return trajectory.extra.get("label") == GUIDED


def reopened(groups: Sequence[Group], renderer: Renderer, *, keep_share: float = 0.0) -> list[Group]:
    """Guided rollouts behind the plain opening, but for the first `keep_share` of a group's.

    The tokens from the first sampled one on stay, id for id. What is scored afterwards, old and reference log-probs, is
    that of the plain opening: the ratio starts at 1, and the gap to what sampled is not corrected.
    """
    out = []
    for group in groups:
        members = [t for t in group.trajectories if guided(t)]
        kept = {id(t) for t in members[: whole_share(keep_share, len(members))]}
        out += mapped(
            [group],
            lambda t, kept=kept: _stripped(t, renderer) if guided(t) and id(t) not in kept else t,
        )
    return out


def _stripped(trajectory: Trajectory, renderer: Renderer) -> Trajectory:
    plain = plain_prompt(trajectory)
    segments = tuple(review(trajectory, plain, renderer))
    extra = {**trajectory.extra, BOOST: True, REOPENED: True}
    return replace(trajectory, prompt=plain, segments=segments, extra=extra)


@dataclass(frozen=True)
class GuidedRules:
    """eta, rounding: see guided_rollouts. top_k, floor: of retrieval. max_chars: of a block.

    every: iterations between readings; examples: plain episodes of a task that the writer reads.
    """

    likeness: Likeness
    eta: float = 0.5
    rounding: Rounding = "floor"
    top_k: int = 5
    floor: float = 0.4
    max_chars: int = 4000
    every: int = 1
    examples: int = 4


class GuidedSource:
    """Implements Source."""

    def __init__(
        self, inner: Source, pool: ExperiencePool, writer: Background, requests: Requests, rules: GuidedRules
    ):
        self.inner, self.pool, self.writer, self.requests, self.rules = inner, pool, writer, requests, rules
        self._flight = InFlight()

    def next(self, iteration: int) -> Sequence[Plan] | Sequence[Group]:
        self._flight.asked(iteration)
        work = self.inner.next(iteration)
        plans = [item for item in work if isinstance(item, Plan)]
        if not plans:
            return work
        return [part for number, plan in enumerate(plans) for part in self._parts(plan, number)]

    def observe(self, groups: Sequence[Group]) -> Metrics:
        for group in groups:
            for trajectory in survivors(group):
                self.requests.learn(trajectory)
        added = self._read(groups) if (self._flight.present + 1) % self.rules.every == 0 else 0
        self._flight.observed()
        metrics = {"navigate/experiences": float(len(self.pool)), "navigate/added": float(added)}
        return {**self.inner.observe(groups), **self.writer.metrics(), **metrics, **_outcomes(groups)}

    def opening(self, task: Task, prompt: Prompt) -> Prompt:
        """The opening with what its request retrieves, to measure what the pool is worth."""
        found = self._retrieved(self.requests.asked(prompt))
        return self._with(prompt, found) if found else prompt

    def state(self) -> Mapping[str, Any]:
        return {
            "inner": self.inner.state(),
            "pool": self.pool.state(),
            "requests": self.requests.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._flight.clear()
        self.inner.restore(state["inner"])
        self.pool.restore(state["pool"])
        self.requests.restore(state["requests"])

    def close(self) -> None:
        self.writer.close()
        self.inner.close()

    def _parts(self, plan: Plan, number: int) -> list[Plan]:
        """The plan's guided and its plain rollouts; the plan itself where nothing guides."""
        n = guided_rollouts(plan.n, self.rules.eta, self.rules.rounding) if plan.branch is None else 0
        found = self._retrieved(self.requests.of(plan.task)) if n else []
        if not found:
            return [plan]

        def prompt(opening: Prompt) -> Prompt:
            return self._with(opening if plan.prompt is None else plan.prompt(opening), found)

        name = plan.group or f"guided{number + 1}"
        parts = [
            replace(plan, n=n, prompt=prompt, label=GUIDED, group=name),
            replace(plan, n=plan.n - n, label=PLAIN, group=name),
        ]
        return [part for part in parts if part.n]

    def _retrieved(self, request: str) -> list[Experience]:
        rules = self.rules
        return self.pool.retrieve(request, rules.likeness, k=rules.top_k, floor=rules.floor)

    def _with(self, prompt: Prompt, found: Sequence[Experience]) -> Prompt:
        return add_lesson(prompt, guidance(found, max_chars=self.rules.max_chars))

    def _read(self, groups: Sequence[Group]) -> int:
        """Ask about the plain episodes of every task, failures and successes by turns; how many experiences are new."""
        payloads, tasks = [], []
        for group in groups:
            plain = [t for t in survivors(group) if not guided(t)]
            chosen = _by_turns(plain)[: self.rules.examples]
            if chosen:
                records = [(episode_record(t, self.requests.asked), t.success) for t in chosen]
                payloads.append(payload_of(records))
                tasks.append(group.task.task_id)
        answers = self.writer.ask(EXPERIENCE, payloads)
        return sum(
            self.pool.add(Experience(one.when_to_use, one.content, task))
            for task, answer in zip(tasks, answers)
            for one in (answer.experiences if answer is not None else ())
        )


def _by_turns(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """A success, a failure, a success, …, then what is left of either."""
    solved = [t for t in trajectories if t.success]
    failed = [t for t in trajectories if not t.success]
    shared = min(len(solved), len(failed))
    pairs = [t for pair in zip(solved, failed) for t in pair]
    return [*pairs, *solved[shared:], *failed[shared:]]


def _outcomes(groups: Sequence[Group]) -> Metrics:
    """Returns with and without guidance, and the share of rollouts that had it."""
    every = [t for group in groups for t in survivors(group)]
    kinds = {GUIDED: [t for t in every if guided(t)], PLAIN: [t for t in every if not guided(t)]}
    means = {
        f"navigate/reward_{name}": sum(t.reward for t in members) / len(members)
        for name, members in kinds.items()
        if members
    }
    return {"navigate/guided_frac": len(kinds[GUIDED]) / max(1, len(every)), **means}
