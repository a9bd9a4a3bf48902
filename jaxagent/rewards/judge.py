"""Judges: what rules cannot score is scored by language models, against a rubric. Groups in, groups with returns out.

    rubric   weighted yes/no criteria; the score is the weight of those that are met, of all weights
    rules    a criterion that can be checked by a rule is; the rule's answer replaces the judge's
    ensemble several models: "majority" of score >= 1/2 (an even tie fails), "median", "mean_minus_std", "min"
    fallback a judge that cannot answer: "rule" gives the environment's verdict, "sign" +1 or -1 by it, "drop" takes the
             episode out of its group and counts it

The episode is material between escaped delimiters (auxlm/role.py): instructions inside it are not the judge's. Ask at
temperature 0; answers are cached by content. What the judges say is kept in the trajectory's parts, with their
agreement with the environment's verdict, which is what a judge is calibrated on.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from jaxagent.auxlm.background import Background
from jaxagent.auxlm.role import Payload, Role
from jaxagent.errors import ConfigError
from jaxagent.rewards.outcome import success
from jaxagent.rewards.returns import PARTS
from jaxagent.types import Dropped, Group, Step, Trajectory

Combine = Literal["majority", "median", "mean_minus_std", "min"]
Fallback = Literal["rule", "sign", "drop"]
SHOWN_STEPS, SHOWN_CHARS = 40, 2000  # of an episode; of a text


@dataclass(frozen=True)
class Criterion:
    """One yes/no question. rule: trajectory -> its answer where a rule knows it, None where it does not."""

    name: str
    question: str
    weight: float = 1.0
    rule: Callable[[Trajectory], bool | None] | None = None


class Verdict(BaseModel):
    """The answer's schema: for every criterion whether it is met, and a sentence of reasons."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    met: dict[str, bool]
    reason: str = ""


def judge_role(rubric: Sequence[Criterion]) -> Role[Verdict]:
    """The role that asks for one verdict on the criteria of a rubric."""
    names = {criterion.name for criterion in rubric}
    asked = "\n".join(f"- {criterion.name}: {criterion.question}" for criterion in rubric)

    def check(record: Verdict, payload: Payload) -> str:
        if set(record.met) != names:
            return f"met has the keys {sorted(record.met)}, the criteria are {sorted(names)}"
        return ""

    return Role(
        name="judge.rubric",
        record=Verdict,
        instruction=(
            "You judge one episode of an agent. Decide for every criterion, from what happened and not from what the "
            f"agent says about it, whether it is met:\n{asked}\nWhere the episode does not show it, it is not met."
        ),
        check=check,
    )


def rubric_score(rubric: Sequence[Criterion], met: Mapping[str, bool]) -> float:
    """Weight met of all weight: .6 yes, .3 no, .1 yes -> .7."""
    total = sum(criterion.weight for criterion in rubric)
    return sum(criterion.weight for criterion in rubric if met[criterion.name]) / total


def combine(scores: Sequence[float], how: Combine) -> float:
    """One score of several judges'. .9 .4 .8: median .8, mean_minus_std (population) .4840, min .4."""
    if how == "majority":
        return float(sum(score >= 0.5 for score in scores) * 2 > len(scores))
    if how == "median":
        return statistics.median(scores)
    if how == "mean_minus_std":
        return statistics.fmean(scores) - statistics.pstdev(scores)
    return min(scores)


def judge_payload(trajectory: Trajectory) -> dict[str, Any]:
    """What a judge sees: the opening's user messages and the steps, long texts cut with a mark.

    Of a long episode the first and the last steps: how it ended decides most criteria, and an agent that could fill the
    judge's view before its last steps would hide them.
    """
    asked = [message.content for message in trajectory.prompt.messages if message.role == "user"]
    steps = [
        {
            "number": step.k + 1,
            "message": cut(step.text),
            "status": str(step.exec_status),
            "observation": cut(step.observation_after),
        }
        for step in _shown(trajectory.steps)
    ]
    return {
        "request": cut("\n".join(asked)),
        "steps": steps,
        "steps_left_out": len(trajectory.steps) - len(steps),
        "ended": str(trajectory.status),
    }


def _shown(steps: Sequence[Step]) -> Sequence[Step]:
    if len(steps) <= SHOWN_STEPS:
        return steps
    half = SHOWN_STEPS // 2
    return (*steps[:half], *steps[-half:])


def cut(text: str, limit: int = SHOWN_CHARS) -> str:
    """The middle goes: a message's action stands at its end, behind the reasons for it."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}… [{len(text) - limit} characters left out] …{text[-half:]}"


class Judge:
    """`Returns`: R is the rubric's score by the judges. Owns their threads; `close` ends them."""

    def __init__(
        self,
        rubric: Sequence[Criterion],
        judges: Sequence[Background],
        *,
        how: Combine = "median",
        fallback: Fallback = "rule",
    ):
        _check(rubric, judges)
        self.rubric, self.judges = tuple(rubric), tuple(judges)
        self.how: Combine = how
        self.fallback: Fallback = fallback
        self._role = judge_role(rubric)

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        episodes = [trajectory for group in groups for trajectory in group.trajectories]
        payloads = [judge_payload(trajectory) for trajectory in episodes]
        # Every judge is asked at once: each has its own thread and limit of concurrent calls.
        open_answers = [[judge.submit(self._role, payload) for payload in payloads] for judge in self.judges]
        answers = zip(*([future.result() for future in futures] for futures in open_answers))
        scored = {
            id(trajectory): self._scored(trajectory, verdicts)
            for trajectory, verdicts in zip(episodes, answers)
        }
        return [self._group(group, [scored[id(t)] for t in group.trajectories]) for group in groups]

    def close(self) -> None:
        for judge in self.judges:
            judge.close()

    def _scored(self, trajectory: Trajectory, verdicts: Sequence[Verdict | None]) -> Trajectory | None:
        """The trajectory with its return; None where it is dropped."""
        scores = [self._score(trajectory, verdict) for verdict in verdicts if verdict is not None]
        solved = bool(success(trajectory))
        parts: dict[str, float] = {"judge_failures": float(len(verdicts) - len(scores))}
        if scores:
            reward = combine(scores, self.how)
            parts |= {"judge": reward, "judge_agrees": float((reward >= 0.5) == solved)}
        elif self.fallback == "drop":
            return None
        else:
            reward = float(solved) if self.fallback == "rule" else 2.0 * solved - 1.0
        return replace(trajectory, reward=reward, extra={**trajectory.extra, PARTS: parts})

    def _score(self, trajectory: Trajectory, verdict: Verdict) -> float:
        met = dict(verdict.met)
        for criterion in self.rubric:
            known = criterion.rule(trajectory) if criterion.rule else None
            if known is not None:
                met[criterion.name] = known
        return rubric_score(self.rubric, met)

    def _group(self, group: Group, scored: Sequence[Trajectory | None]) -> Group:
        lost = [
            Dropped(t.task.task_id, t.rollout, "unjudged", "no judge gave a usable answer")
            for t, new in zip(group.trajectories, scored)
            if new is None
        ]
        kept = tuple(trajectory for trajectory in scored if trajectory is not None)
        return replace(group, trajectories=kept, dropped=(*group.dropped, *lost))


def _check(rubric: Sequence[Criterion], judges: Sequence[Background]) -> None:
    names = [criterion.name for criterion in rubric]
    if not rubric or not judges or len(set(names)) != len(names):
        raise ConfigError(
            f"judge: criteria {names} and {len(judges)} judges; give one or more, names all different"
        )
    if any(criterion.weight <= 0 for criterion in rubric):
        raise ConfigError(f"judge: the weights {[c.weight for c in rubric]} must all be above 0")
