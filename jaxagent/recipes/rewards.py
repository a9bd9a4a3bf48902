"""The return that a recipe's options ask for: an outcome by name, or a record of an outcome and terms beside it.

reward: success
reward: {outcome: test_fraction, format: 0.2, tool: 0.1, length: {target: 10}, cap: 0.3}
reward: {judge: {models: [{base_url: "https://…/v1", model: …}], rubric: [{name: polite, question: "Is it polite?"}]}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from jaxagent.auxlm.background import Background
from jaxagent.auxlm.blocking import ReaderOptions
from jaxagent.recipes.unread import refuse_unread
from jaxagent.records import Record
from jaxagent.rewards import shaping, truncation
from jaxagent.rewards.judge import Combine, Criterion, Fallback, Judge
from jaxagent.rewards.outcome import score, success, test_fraction, zero_on
from jaxagent.rewards.returns import StepTerm, composed, each
from jaxagent.rewards.subgoals import Subgoal, subgoal_terms
from jaxagent.stage import Returns, Reward
from jaxagent.types import Status

OutcomeName = Literal["test_fraction", "success", "score"]

OUTCOMES: Mapping[str, Reward] = {"test_fraction": test_fraction, "success": success, "score": score}


class LengthOptions(Record):
    """Minus `rate` a unit above `target`, at most `cap`."""

    target: int = Field(ge=1)
    rate: float = Field(0.05, gt=0)
    cap: float = Field(0.5, gt=0)
    unit: Literal["action_tokens", "steps"] = "steps"


class OverlongOptions(Record):
    """What episodes cost that come near `limit`. kind:

    linear: DAPO's soft penalty over the last `buffer` units before the limit, to -`factor`.
    exp:    the outcome times exp(-over / tau), over counted from limit - buffer.
    filter: those over the limit, or out of context, are not trained on; they stay in the baseline.
    """

    kind: Literal["linear", "exp", "filter"] = "linear"
    limit: int = Field(ge=1)
    buffer: int = Field(0, ge=0)
    factor: float = Field(1.0, gt=0)
    tau: float = Field(0.0, ge=0)
    unit: Literal["action_tokens", "steps"] = "action_tokens"

    @model_validator(mode="after")
    def _belongs(self) -> OverlongOptions:
        reads = {"linear": {"buffer", "factor"}, "exp": {"buffer", "tau"}, "filter": set()}[self.kind]
        given = self.model_fields_set & {"buffer", "factor", "tau"}
        if given - reads:
            raise ValueError(f"kind={self.kind} does not read {', '.join(sorted(given - reads))}; drop it")
        if self.kind == "linear" and not 0 < self.buffer <= self.limit:
            raise ValueError(
                f"buffer={self.buffer} must be above 0 and at most limit={self.limit} with kind=linear"
            )
        if self.kind == "exp" and (self.tau <= 0 or self.buffer > self.limit):
            raise ValueError(
                f"kind=exp needs tau above 0 and buffer={self.buffer} at most limit={self.limit}"
            )
        return self


class SubgoalOptions(Record):
    """See rewards/subgoals.py: patterns that an observation and a message must match."""

    name: str
    observation: str = ""
    message: str = ""
    weight: float = Field(0.1, gt=0)

    def subgoal(self) -> Subgoal:
        return Subgoal(self.name, self.observation, self.message, self.weight)


class CriterionOptions(Record):
    """rule: "success" lets the environment's verdict answer this criterion instead of the judge."""

    name: str
    question: str
    weight: float = Field(1.0, gt=0)
    rule: Literal["", "success"] = ""


class JudgeOptions(Record):
    """See rewards/judge.py."""

    models: tuple[ReaderOptions, ...] = Field(min_length=1)
    rubric: tuple[CriterionOptions, ...] = Field(min_length=1)
    combine: Combine = "median"
    fallback: Fallback = "rule"


class RewardOptions(Record):
    """R = scale * outcome + min(cap, format + tool + length + overlong + invalid_action + subgoals).

    format, tool: weights of `message_format` and `tool_use` (rewards/shaping.py).
    invalid_action: added for every message without a legal action (GiGPO: scale 10, -0.1).
    cap:   the terms together stay within it; 0 is no cap. Keep it well below the outcome.
    floor: R is at least this (LOOP's code: 0); None is no floor.
    on_step_limit, on_overflow: what an episode is worth that ran out of steps, out of context (rewards/truncation.py);
           penalty: the whole -factor of `overlong`, however few tokens it sampled.
    judge: R is a rubric's score by language models; it stands alone.
    """

    outcome: OutcomeName = "test_fraction"
    scale: float = Field(1.0, gt=0)
    format: float = 0.0
    tool: float = 0.0
    length: LengthOptions | None = None
    overlong: OverlongOptions | None = None
    invalid_action: float = Field(0.0, le=0)
    subgoals: tuple[SubgoalOptions, ...] = ()
    subgoal_cap: float = Field(0.3, gt=0)
    in_order: bool = False
    cap: float = Field(0.0, ge=0)
    floor: float | None = None
    on_step_limit: Literal["evaluate", "zero", "mask"] = "evaluate"
    on_overflow: Literal["evaluate", "zero", "mask", "penalty"] = "evaluate"
    judge: JudgeOptions | None = None

    @model_validator(mode="after")
    def _stands_alone(self) -> RewardOptions:
        if self.judge is not None and self.model_fields_set - {"judge"}:
            others = ", ".join(sorted(self.model_fields_set - {"judge"}))
            raise ValueError(f"a judge's score is the whole return; drop {others}, or drop judge")
        return self

    @model_validator(mode="after")
    def _penalty(self) -> RewardOptions:
        refuse_unread(self, "subgoal_cap", "in_order", read=bool(self.subgoals), when="subgoals")
        if self.on_overflow == "penalty" and (self.overlong is None or self.overlong.kind != "linear"):
            raise ValueError(
                "on_overflow=penalty takes its size from `overlong` of kind linear; give that too"
            )
        return self

    @property
    def by_step(self) -> bool:
        """Whether parts of the return belong to steps."""
        return bool(self.invalid_action or self.subgoals)

    def cut(self, action: str) -> tuple[Status, ...]:
        """How episodes end that get this treatment."""
        asked = {Status.STEP_LIMIT: self.on_step_limit, Status.LENGTH: self.on_overflow}
        return tuple(status for status, wanted in asked.items() if wanted == action)


def returns_of(reward: OutcomeName | RewardOptions) -> Returns:
    """The function that sets the returns of an iteration's groups."""
    if isinstance(reward, str):
        return each(OUTCOMES[reward])
    if reward.judge is not None:
        return _judge(reward.judge)
    returns = composed(
        _outcome(reward),
        _terms(reward),
        step_terms=_step_terms(reward),
        scale=reward.scale,
        cap=reward.cap,
        floor=reward.floor,
    )
    cuts = [truncation.ended(status) for status in reward.cut("mask")]
    if (over := reward.overlong) is not None and over.kind == "filter":
        cuts.append(truncation.longer(over.limit, over.unit))
    return truncation.masked(returns, *cuts)


def _outcome(options: RewardOptions) -> Reward:
    outcome = zero_on(OUTCOMES[options.outcome], options.cut("zero"))
    if (over := options.overlong) is not None and over.kind == "exp":
        return truncation.exponential(outcome, start=over.limit - over.buffer, tau=over.tau, unit=over.unit)
    return outcome


def outcome_of(reward: OutcomeName | RewardOptions) -> Reward:
    """The outcome that a return is made of, without scale and terms beside it; of an episode whose return is set."""
    if isinstance(reward, str):
        return OUTCOMES[reward]
    return OUTCOMES[reward.outcome] if reward.judge is None else lambda trajectory: trajectory.reward


def _terms(options: RewardOptions) -> dict[str, Reward]:
    """The terms that are switched on, by name."""
    terms: dict[str, Reward] = {}
    if options.format:
        terms["format"] = shaping.weighted(options.format, shaping.message_format)
    if options.tool:
        terms["tool"] = shaping.weighted(options.tool, shaping.tool_use)
    if (length := options.length) is not None:
        terms["length"] = shaping.excess(
            target=length.target, rate=length.rate, cap=length.cap, unit=length.unit
        )
    if (over := options.overlong) is not None and over.kind == "linear":
        soft = shaping.overlong(limit=over.limit, buffer=over.buffer, factor=over.factor, unit=over.unit)
        terms["overlong"] = truncation.full_penalty(
            soft, over.factor, truncation.ended(*options.cut("penalty"))
        )
    return terms


def _step_terms(options: RewardOptions) -> dict[str, StepTerm]:
    """Those that belong to the steps that earned them."""
    terms: dict[str, StepTerm] = {}
    if options.invalid_action:
        terms["invalid_action"] = shaping.per_illegal_step(options.invalid_action)
    if options.subgoals:
        goals = [goal.subgoal() for goal in options.subgoals]
        terms["subgoals"] = subgoal_terms(goals, cap=options.subgoal_cap, in_order=options.in_order)
    return terms


def _judge(options: JudgeOptions) -> Judge:
    rubric = [
        Criterion(c.name, c.question, c.weight, (lambda t: bool(success(t))) if c.rule else None)
        for c in options.rubric
    ]
    judges = [Background(model.aux()) for model in options.models]
    return Judge(rubric, judges, how=options.combine, fallback=options.fallback)
