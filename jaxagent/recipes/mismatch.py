"""Sampler against trainer, as an option of every policy recipe (batch/mismatch.py has the rules and their numbers).

Decoupled: the ratio of the policy loss stays pi / pi_old, and each token's loss is multiplied by a constant weight of
pi_old / mu, where mu is the sampler. `bypass` takes mu for pi_old instead: the ratio is then pi / mu, the trainer
scores nothing before the update, and a weight would count the same difference twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field, model_validator

from jaxagent.batch.mismatch import (
    Weigh,
    geo_mask,
    importance_metrics,
    seq_mask,
    seq_trunc,
    token_mask,
    token_trunc,
    weighted,
)
from jaxagent.errors import ConfigError
from jaxagent.learn.loss import Loss
from jaxagent.learn.terms import corrected
from jaxagent.records import Record
from jaxagent.rewards.returns import Changed
from jaxagent.rollout.staleness import sampler_as_old
from jaxagent.stage import Returns, Stage
from jaxagent.types import Credited, Group, Metrics, Sample

READS = {
    "none": set(),
    "bypass": set(),
    "token_trunc": {"cap", "normalise"},
    "seq_trunc": {"cap", "normalise"},
    "token_mask": {"low", "high", "normalise"},
    "seq_mask": {"low", "high", "normalise"},
    "geo_mask": {"low", "high", "normalise"},
}


class MismatchOptions(Record):
    """cap: of *_trunc. low, high: of *_mask. normalise: divide the weights by their mean over the iteration."""

    mode: Literal["none", "token_trunc", "token_mask", "seq_trunc", "seq_mask", "geo_mask", "bypass"] = "none"
    cap: float = Field(default=2.0, gt=0)
    low: float = Field(default=0.5, ge=0)
    high: float = Field(default=2.0, gt=0)
    normalise: bool = False

    @model_validator(mode="after")
    def _belongs(self) -> MismatchOptions:
        if unread := self.model_fields_set - {"mode"} - READS[self.mode]:
            why = (
                "the ratio is pi / mu already, a weight would count it twice" if self.mode == "bypass" else ""
            )
            raise ValueError(
                f"mode={self.mode} does not read {', '.join(sorted(unread))}{f' ({why})' if why else ''}; drop it"
            )
        if self.low >= self.high:
            raise ValueError(f"low={self.low} must be below high={self.high}")
        return self

    @property
    def weigh(self) -> Weigh | None:
        """The rule of the weights; None without weights."""
        return {
            "token_trunc": token_trunc(self.cap),
            "token_mask": token_mask(self.low, self.high),
            "seq_trunc": seq_trunc(self.cap),
            "seq_mask": seq_mask(self.low, self.high),
            "geo_mask": geo_mask(self.low, self.high),
        }.get(self.mode)


def corrected_stage(stage: Stage, options: MismatchOptions, *, term: str = "pg") -> Stage:
    """The stage with the correction in its policy term."""
    if options.mode == "none":
        return stage
    if term not in stage.terms:
        raise ConfigError(
            f"mismatch.mode={options.mode}: stage {stage.name!r} has no policy term {term!r} to correct, only "
            f"{', '.join(stage.terms)}; drop it"
        )
    if (weigh := options.weigh) is None:
        return _bypassed(stage)

    def samples(credited: Sequence[Credited]) -> list[Sample]:
        return weighted(stage.samples(credited), weigh, term=term, normalise=options.normalise)

    def measure(groups: Sequence[Group], made: Sequence[Sample]) -> Metrics:
        before = stage.measure(groups, made) if stage.measure else {}
        return {**before, **importance_metrics(made, weigh, term=term)}

    policy = stage.terms[term]
    assert isinstance(policy.loss, Loss)
    return replace(
        stage,
        samples=samples,
        measure=measure,
        terms={**stage.terms, term: replace(policy, loss=corrected(policy.loss))},
        needs=tuple(dict.fromkeys(("old", *stage.needs))),
    )


def _bypassed(stage: Stage) -> Stage:
    """The sampler's log-probs under the name of the old ones, before anything reads those."""
    assert stage.reward is not None
    returns: Returns = Changed(stage.reward, before=sampler_as_old)
    return replace(stage, reward=returns, needs=tuple(name for name in stage.needs if name != "old"))
