"""SIRI: skills that the agent mines, proves in paired rollouts and internalises; deployed without them (2606.02355).

    L = L_GiGPO + beta KL + lambda(k) L_int        both halves of a group under the prompt each was sampled with

    warm-up          GiGPO on plain prompts, `warmup_min` iterations or until `n_req` successes, at most `warmup_max`
    mining           every `mine_every` iterations a snapshot of the policy writes skills from successful plain episodes
    validation       half of a group with the retrieved skill, half without: Delta moves the skill's utility
    internalisation  where Delta > 0, action tokens of the skill half are learnt under the plain prompt, by advantage

Everything else is gigpo: with no skill, a closed gate or lambda_max 0 the samples are gigpo's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field, model_validator

from jaxagent.auxlm.background import Background
from jaxagent.auxlm.blocking import ReaderOptions
from jaxagent.auxlm.client import AuxLimits, AuxLM, ScriptedBackend
from jaxagent.auxlm.policy import PolicyBackend
from jaxagent.batch.internal import Divisor, Gate, Internalise, internal_samples
from jaxagent.batch.targets import token_mean
from jaxagent.eval.ways import opened_by
from jaxagent.learn.terms import weighted_likelihood
from jaxagent.recipes import gigpo
from jaxagent.recipes.base import Materials
from jaxagent.recipes.gigpo import GigpoOptions
from jaxagent.recipes.policy import policy_recipe
from jaxagent.recipes.retrieval import RetrieverOptions
from jaxagent.recipes.rewards import outcome_of
from jaxagent.recipes.unread import refuse_unread
from jaxagent.skills.halves import DELTA, SKILL, branch, halves, with_deltas
from jaxagent.skills.intrinsic import IntrinsicBank, Thresholds
from jaxagent.skills.mine import MINE, Miner, script_mine
from jaxagent.skills.paired import PairedRules, PairedSource, full_skill, strategy_alone
from jaxagent.skills.request import Requests
from jaxagent.stage import Credit, Samples, Stage, Term
from jaxagent.types import Credited, Generate, Sample, Sampling

TERM = "internal"
TEXTS = {"full": full_skill, "strategy": strategy_alone}
GATES: dict[str, Gate] = {
    "delta": lambda item: branch(item.trajectory) == SKILL and item.trajectory.extra.get(DELTA, 0.0) > 0,
    "open": lambda item: branch(item.trajectory) == SKILL,
    "closed": lambda item: False,
}


class SiriOptions(GigpoOptions):
    """What is not a number of the paper is ours: n_req, alpha, the thresholds, lambda_max, lambda_warm, w_max.

    miner: "policy" is the paper's, a snapshot of the policy itself; "script" needs no language model; or an endpoint's
           record. mine_tokens: of its answer.
    gate: "delta" internalises where Delta > 0, "open" wherever a skill was shown, "closed" nowhere.
    divide_by: L_int over the number of tokens that are kept, or over their weight.
    baseline: the halves of a group share a baseline, or each "branch" is a group of its own.
    skill_text: "strategy" shows no condition and no words about it, for models that know nothing else.
    slot: how often an unproven candidate goes before the skill that is most alike.
    """

    warmup_min: int = Field(30, ge=0)
    warmup_max: int = Field(50, ge=0)
    n_req: int = Field(64, ge=0)
    success_at: float = Field(1.0, ge=0, le=1)
    miner: Literal["policy", "script"] | ReaderOptions = "policy"
    mine_every: int = Field(10, ge=1)
    mine_calls: int = Field(4, ge=1)
    mine_batch: int = Field(4, ge=1)
    mine_tokens: int = Field(1024, ge=1)
    stored: int = Field(512, ge=1)
    retriever: RetrieverOptions = RetrieverOptions()
    slot: float = Field(0.5, ge=0, le=1)
    skill_text: Literal["full", "strategy"] = "full"
    alpha: float = Field(0.3, gt=0, le=1)
    n_eval: int = Field(3, ge=1)
    u_min: float = 0.0
    u_ret: float = Field(0.0, ge=0)
    n_neg: int = Field(3, ge=1)
    gate: Literal["delta", "open", "closed"] = "delta"
    baseline: Literal["group", "branch"] = "group"
    lambda_max: float = Field(0.1, ge=0)
    lambda_warm: int = Field(50, ge=0)
    w_max: float = Field(2.0, gt=0)
    divide_by: Divisor = "kept"

    @model_validator(mode="after")
    def _warm_up(self) -> SiriOptions:
        if self.warmup_min > self.warmup_max:
            raise ValueError(f"warmup_min={self.warmup_min} is above warmup_max={self.warmup_max}")
        refuse_unread(self, "mine_tokens", read=self.miner == "policy", when="miner: policy")
        if self.rollouts_from:
            raise ValueError(
                "SIRI proves skills in paired rollouts of its own, stored ones were played without; drop rollouts_from"
            )
        return self


def stage(options: SiriOptions, materials: Materials) -> Stage:
    base = gigpo.stage(options, materials)
    assert base.reward is not None
    assert base.credit is not None
    outcome = outcome_of(options.reward)
    miner = Miner(_writer(options))
    requests = Requests(materials.spec, options.retriever.asked())
    source = PairedSource(base.source, _bank(options), miner, requests, _rules(options), seed=materials.seed)
    return replace(
        base,
        source=source,
        reward=with_deltas(base.reward, outcome),
        credit=base.credit if options.baseline == "group" else _apart(base.credit),
        samples=_samples(base.samples, source, options, materials),
        terms={**base.terms, TERM: Term(weighted_likelihood(), token_mean)},
        ways={"skills": opened_by(source.opening)},
        meet_policy=_introduce(miner, options, materials) if options.miner == "policy" else None,
        shown={"skills": source.bank.state},
    )


def _bank(options: SiriOptions) -> IntrinsicBank:
    return IntrinsicBank(
        Thresholds(options.alpha, options.n_eval, options.u_min, options.u_ret, options.n_neg)
    )


def _rules(options: SiriOptions) -> PairedRules:
    same = (
        "warmup_min",
        "warmup_max",
        "n_req",
        "success_at",
        "mine_every",
        "mine_calls",
        "mine_batch",
        "stored",
    )
    return PairedRules(
        outcome=outcome_of(options.reward),
        likeness=options.retriever.likeness(),
        floor=options.retriever.floor,
        slot=options.slot,
        lambda_max=options.lambda_max,
        lambda_warm=options.lambda_warm,
        text=TEXTS[options.skill_text],
        **{name: getattr(options, name) for name in same},
    )


def _writer(options: SiriOptions) -> Background | None:
    """The miner's model where it is not the policy."""
    if isinstance(options.miner, ReaderOptions):
        return Background(options.miner.aux())
    if options.miner == "script":
        return Background(AuxLM(ScriptedBackend({MINE.name: script_mine}), AuxLimits()))
    return None


def _introduce(miner: Miner, options: SiriOptions, materials: Materials) -> Callable[[Generate], None]:
    """Connect the miner with the live policy. Its answers are of the weights at hand, so none is cached."""

    def meet(generate: Generate) -> None:
        greedy = Sampling(options.mine_tokens, temperature=0.0)
        backend = PolicyBackend(generate, materials.renderer, greedy, seed=materials.seed)
        miner.connect(Background(AuxLM(backend, AuxLimits(cached=0))))

    return meet


def _apart(credit: Credit) -> Credit:
    return lambda groups: credit(halves(groups))


def _samples(plain: Samples, source: PairedSource, options: SiriOptions, materials: Materials) -> Samples:
    """GiGPO's samples, and those that internalise."""
    rules = Internalise(GATES[options.gate], options.w_max, options.divide_by, TERM)

    def samples(credited: Sequence[Credited]) -> list[Sample]:
        if not source.strength:
            source.noted = {}
            return plain(credited)
        more, source.noted = internal_samples(
            credited,
            rules,
            strength=source.strength,
            renderer=materials.renderer,
            decode=materials.renderer.tokenizer.decode,
        )
        return [*plain(credited), *more]

    return samples


RECIPE = policy_recipe(SiriOptions, stage)
