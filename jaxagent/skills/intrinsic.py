"""Skills that the agent mined itself, and what paired rollouts proved of them. SIRI, arXiv 2606.02355.

    candidate --n >= N_eval and u > u_min--> active
    candidate, active --n >= N_eval and u < -u_ret for N_neg evaluations in a row--> retired

u is a moving average of Delta, the mean return with the skill minus that without: u <- (1 - alpha) u + alpha Delta.
Alpha .3 over Delta .5, .25, -.25, .5:  u = .15, .18, .051, .1857. Mining is skills/mine.py's job, pairing that of
skills/paired.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from random import Random
from typing import Any

from jaxagent.errors import ConfigError, DataError
from jaxagent.skills.retrieve import Likeness, top_k


class State(StrEnum):
    CANDIDATE = "candidate"
    ACTIVE = "active"
    RETIRED = "retired"


@dataclass(frozen=True)
class IntrinsicSkill:
    """When to do what. origin: the tasks it was mined from. negative: evaluations in a row with u < -u_ret."""

    skill_id: str
    condition: str
    strategy: str
    origin: tuple[str, ...] = ()
    state: State = State.CANDIDATE
    utility: float = 0.0
    evaluations: int = 0
    negative: int = 0


@dataclass(frozen=True)
class Thresholds:
    """alpha, n_eval, u_min, u_ret, n_neg: as above."""

    alpha: float = 0.3
    n_eval: int = 3
    u_min: float = 0.0
    u_ret: float = 0.0
    n_neg: int = 3

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1 or min(self.n_eval, self.n_neg) < 1 or self.u_ret < 0:
            raise ConfigError(
                f"skill thresholds alpha={self.alpha}, n_eval={self.n_eval}, n_neg={self.n_neg}, u_ret={self.u_ret}: "
                "expected alpha in (0, 1], n_eval and n_neg at least 1, u_ret not negative"
            )


def evaluated(skill: IntrinsicSkill, delta: float, rules: Thresholds) -> IntrinsicSkill:
    """The skill after one more paired evaluation."""
    utility = (1 - rules.alpha) * skill.utility + rules.alpha * delta
    n = skill.evaluations + 1
    negative = skill.negative + 1 if utility < -rules.u_ret else 0
    state = skill.state
    if n >= rules.n_eval and negative >= rules.n_neg:
        state = State.RETIRED
    elif n >= rules.n_eval and utility > rules.u_min and state is State.CANDIDATE:
        state = State.ACTIVE
    return replace(skill, utility=utility, evaluations=n, negative=negative, state=state)


class IntrinsicBank:
    """Owns the skills, oldest first; retired ones stay, so that they are not mined again."""

    def __init__(self, rules: Thresholds | None = None):
        self.rules = rules or Thresholds()
        self._skills: dict[str, IntrinsicSkill] = {}

    def __len__(self) -> int:
        return len(self._skills)

    @property
    def skills(self) -> Sequence[IntrinsicSkill]:
        return tuple(self._skills.values())

    def count(self) -> Mapping[State, int]:
        found = Counter(skill.state for skill in self.skills)
        return {state: found[state] for state in State}

    def add(self, condition: str, strategy: str, origin: Sequence[str]) -> bool:
        """Store a candidate; False if the bank has had the same words before."""
        content = (condition.strip(), strategy.strip())
        if any((skill.condition, skill.strategy) == content for skill in self.skills):
            return False
        skill_id = f"s{len(self)}"
        self._skills[skill_id] = IntrinsicSkill(skill_id, *content, origin=tuple(origin))
        return True

    def retrieve(
        self, request: str, likeness: Likeness, *, floor: float, slot: float = 0.0, draw: Random | None = None
    ) -> IntrinsicSkill | None:
        """The candidate or active skill whose condition is most like the request, or None below the floor.

        slot: with this probability only candidates that still lack evaluations compete, if one reaches the floor.
        """
        usable = [skill for skill in self.skills if skill.state is not State.RETIRED]
        if not usable or not request.strip():
            return None
        likeness_N = likeness(request, [skill.condition for skill in usable])
        order = [usable[i] for i in top_k(likeness_N, len(usable), floor=floor)]
        untried = [skill for skill in order if skill.evaluations < self.rules.n_eval]
        untried = [skill for skill in untried if skill.state is State.CANDIDATE]
        if untried and draw is not None and draw.random() < slot:
            return untried[0]
        return order[0] if order else None

    def evaluate(self, skill_id: str, delta: float) -> tuple[State, State]:
        """Fold one paired evaluation in; returns the states before and after."""
        before = self._skills[skill_id]
        after = evaluated(before, delta, self.rules)
        self._skills[skill_id] = after
        return before.state, after.state

    def state(self) -> list[dict[str, Any]]:
        """JSON-serialisable; `restore(state())` gives an equal bank."""
        return [{**asdict(skill), "state": skill.state.value} for skill in self.skills]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        try:
            skills = [
                IntrinsicSkill(**{**entry, "origin": tuple(entry["origin"]), "state": State(entry["state"])})
                for entry in state
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the saved skill bank is damaged or of another version: {error!r}") from error
        self._skills = {skill.skill_id: skill for skill in skills}
