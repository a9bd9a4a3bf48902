"""SkillRL: GRPO with skills in the prompt, in training and at inference (arXiv 2602.08234). The external reference.

After every `update_every` iterations, kinds of tasks whose success is below `threshold` get new skills, at most `most`
in all, written from their failures by an external model. Nothing is internalised: deployment needs the bank.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field, model_validator

from jaxagent.auxlm.background import Background
from jaxagent.auxlm.blocking import ReaderOptions
from jaxagent.auxlm.client import AuxLimits, AuxLM, ScriptedBackend
from jaxagent.eval.ways import opened_by
from jaxagent.recipes import grpo
from jaxagent.recipes.base import Materials
from jaxagent.recipes.gigpo import REWARD
from jaxagent.recipes.grpo import GrpoOptions
from jaxagent.recipes.policy import policy_recipe
from jaxagent.recipes.retrieval import RetrieverOptions
from jaxagent.recipes.rewards import OutcomeName, RewardOptions
from jaxagent.recipes.skill_options import refuse_played_already
from jaxagent.skills.evolve import WRITE, script_write
from jaxagent.skills.library import full_library_text, principles_alone, read_library
from jaxagent.skills.shown import LibraryRules, LibrarySource
from jaxagent.stage import Stage

TEXTS = {"full": full_library_text, "principle": principles_alone}


class SkillrlOptions(GrpoOptions):
    """bank: a JSON file in SkillRL's layout to begin with; empty begins without skills.

    writer: an endpoint's record (the paper's strong model), or "script", which copies workflows and errors.
    skill_text: "principle" shows the best skill's principle alone, for models that know nothing else.
    """

    iterations: int = Field(150, ge=1)
    reward: OutcomeName | RewardOptions = REWARD
    kl_in: Literal["none", "loss", "reward", "advantage"] = "loss"
    kl_coef: float = Field(0.01, ge=0)
    bank: str = ""
    writer: Literal["script"] | ReaderOptions = "script"
    retriever: RetrieverOptions = RetrieverOptions()
    top_k: int = Field(6, ge=1)
    update_every: int = Field(5, ge=1)
    threshold: float = Field(0.4, ge=0, le=1)
    most: int = Field(3, ge=1)
    skill_text: Literal["full", "principle"] = "full"

    @model_validator(mode="after")
    def _plays(self) -> SkillrlOptions:
        refuse_played_already(self)
        return self


def stage(options: SkillrlOptions, materials: Materials) -> Stage:
    base = grpo.stage(options, materials)
    rules = LibraryRules(
        likeness=options.retriever.likeness(),
        top_k=options.top_k,
        floor=options.retriever.floor,
        threshold=options.threshold,
        every=options.update_every,
        most=options.most,
        text=TEXTS[options.skill_text],
        asked=options.retriever.asked(),
    )
    source = LibrarySource(base.source, read_library(options.bank), _writer(options), rules)
    return replace(
        base,
        source=source,
        ways={"skills": opened_by(source.opening)},
        shown={"skills": source.library.state},
    )


def _writer(options: SkillrlOptions) -> Background:
    if isinstance(options.writer, ReaderOptions):
        return Background(options.writer.aux())
    return Background(AuxLM(ScriptedBackend({WRITE.name: script_write}), AuxLimits()))


RECIPE = policy_recipe(SkillrlOptions, stage)
