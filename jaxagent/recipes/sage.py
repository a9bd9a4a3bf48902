"""SAGE: skill-augmented GRPO (arXiv 2512.17102). Functions written for one task are paid for solving the next.

    q1, q2 of one scenario; every rollout j goes on from q1 to q2 with the functions that it defined in q1
    R1 = r1 + 1[r1] 1[r2] u      R2 = r2 + 1[r2] u      u = 1: q2 calls a function of q1      no code: R = -1
    A  = R - mean over the rollouts of the same position

No standard deviation, no KL, one on-policy step an iteration, mean over all tokens. `bonus: 0` is the outcome-reward
ablation, `advantage: chain` the chain-reward one. Skills are Python functions (skills/functions.py), each rollout has
its own library; a cold start that has seen reuse (the sft or rft recipe with `chain_len: 2`) comes before. Evaluations
are made twice, without skills and with libraries that grow while a split is played (skills/shelf.py): mode "+library".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import Field, model_validator

from jaxagent.batch.targets import policy_samples, token_mean
from jaxagent.credit.chain import chain_mean
from jaxagent.credit.group import group_mean, per_group
from jaxagent.data.chains import ChainShape, ChainSource
from jaxagent.learn.terms import clipped_pg
from jaxagent.recipes.base import Materials
from jaxagent.recipes.policy import PG, PolicyOptions, policy_recipe, policy_update
from jaxagent.recipes.retrieval import RetrieverOptions
from jaxagent.recipes.rewards import OUTCOMES, OutcomeName, RewardOptions
from jaxagent.recipes.unread import refuse_unread
from jaxagent.rewards.skills import SkillPay, skill_integrated, skill_metrics
from jaxagent.skills.hand_on import HEADINGS, handed, handing_on
from jaxagent.skills.retrieve import jaccard
from jaxagent.skills.shelf import GrowingLibraries, Pick, by_function, by_request, same_scenario
from jaxagent.stage import Credit, Stage, Term

ADVANTAGES: Mapping[str, Credit] = {"position": per_group(group_mean), "chain": chain_mean}


class SageOptions(PolicyOptions):
    """tasks: scenarios of an iteration, `group_size` chains of `chain_len` of their tasks each.

    bonus: what making, and using, a skill that helps adds to the outcome. gen_bonus_requires_r1: the maker is paid only
    if its own task is solved. advantage: every position has its own baseline, or a chain shares the sum of its returns.
    library_text: "plain" shows signatures without a heading.
    retrieval: which functions a task of an evaluation gets; "none" evaluates without skills only. top_k tasks, or
    functions with skill_emb, that are most like the request; `retriever` says how texts are embedded, and the floor.
    order_seed: of the order in which the tasks of a scenario are played.
    """

    tasks: int = Field(24, ge=1)
    group_size: int = Field(8, ge=2)
    reward: OutcomeName | RewardOptions = "success"
    chain_len: int = Field(2, ge=2)
    bonus: float = Field(1.0, ge=0)
    gen_bonus_requires_r1: bool = True
    no_code: float = Field(-1.0, le=0)
    advantage: Literal["position", "chain"] = "position"
    library_text: Literal["full", "plain"] = "full"
    library_chars: int = Field(4000, ge=100)
    retrieval: Literal["none", "same_scenario", "query_ngram", "query_emb", "skill_emb"] = "same_scenario"
    retriever: RetrieverOptions = RetrieverOptions(floor=0.0)
    top_k: int = Field(3, ge=1)
    order_seed: int = Field(0, ge=0)
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.2, gt=0)
    weight_decay: float = Field(0.0, ge=0)

    @model_validator(mode="after")
    def _outcome_alone(self) -> SageOptions:
        if not isinstance(self.reward, str):
            raise ValueError(
                f"reward: SAGE adds its bonuses to an outcome; name one of {', '.join(OUTCOMES)}"
            )
        refuse_unread(
            self,
            "curriculum",
            read=False,
            when="tasks that are drawn one by one, and chains are drawn by scenario,",
        )
        ranks = self.retrieval in ("query_ngram", "query_emb", "skill_emb")
        refuse_unread(self, "top_k", read=ranks, when="retrieval query_ngram, query_emb or skill_emb")
        refuse_unread(self, "order_seed", "retriever", read=self.retrieval != "none", when="a retrieval")
        if self.retrieval in ("query_emb", "skill_emb") and self.retriever.by == "ngram":
            raise ValueError(
                f"retrieval={self.retrieval} compares embeddings, and retriever.by=ngram has none"
            )
        return self


def stage(options: SageOptions, materials: Materials) -> Stage:
    shape = ChainShape(options.tasks, options.group_size, options.chain_len)
    hand_on = handing_on(heading=HEADINGS[options.library_text], max_chars=options.library_chars)
    chains = ChainSource(materials.tasks[: options.pool or None], shape, hand_on, seed=materials.seed)
    assert isinstance(options.reward, str)  # the options see to it
    libraries = _libraries(options)
    pay = SkillPay(options.bonus, options.gen_bonus_requires_r1, options.no_code)
    update = policy_update(options)
    return Stage(
        name=materials.name,
        source=chains,
        iterations=options.iterations,
        reward=skill_integrated(OUTCOMES[options.reward], pay),
        credit=ADVANTAGES[options.advantage],
        samples=policy_samples,
        terms={PG: Term(clipped_pg(options.clip_low, options.clip_high), token_mean)},
        needs=("old",) if options.off_policy else (),
        sampling=materials.sampling,
        follow_up=chains.follow_up,
        update=replace(update, steps_per_iteration=update.steps_per_iteration * options.chain_len),
        measure=lambda groups, samples: skill_metrics(groups),
        ways={} if libraries is None else {"library": libraries.way},
        shown={} if libraries is None else {"library": libraries.state},
    )


def _libraries(options: SageOptions) -> GrowingLibraries | None:
    """What evaluations with skills go through."""
    if options.retrieval == "none":
        return None
    k, floor = options.top_k, options.retriever.floor
    pick: Pick = same_scenario
    if options.retrieval == "query_ngram":
        pick = by_request(jaccard, k, floor)
    elif options.retrieval == "query_emb":
        pick = by_request(options.retriever.likeness(), k, floor)
    elif options.retrieval == "skill_emb":
        pick = by_function(options.retriever.likeness(), k, floor)
    hand = partial(handed, heading=HEADINGS[options.library_text], max_chars=options.library_chars)
    return GrowingLibraries(pick, hand, options.order_seed, options.retriever.asked())


RECIPE = policy_recipe(SageOptions, stage)
