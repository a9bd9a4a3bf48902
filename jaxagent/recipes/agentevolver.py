"""AgentEvolver: a judge's labels per step fused with the outcome, and rollouts guided by experience (arXiv 2511.10395).

    A[i,k] = sum over j >= k of  alpha attr[i,j] + [j is the last step] out[i]           credit/attribution.py
    token ratio, clip 0.2 / 0.28, mean over tokens, KL 0.001 (k3) to the policy of the stage's start

`judge: script` labels by execution status, without a language model; `endpoint` asks one a question a trajectory.
`navigating: {…}` opens a share of every task's rollouts with experiences (skills/guided.py). The block is stripped
before anything is scored, and what is stripped is clipped at 1 + `boost` where A > 0 (batch/boost.py): selective
boosting. The third mechanism, tasks that a model writes, is not part of this.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

from pydantic import Field, model_validator

from jaxagent.auxlm.background import Background
from jaxagent.auxlm.blocking import ReaderOptions
from jaxagent.auxlm.client import AuxLM, ScriptedBackend
from jaxagent.batch.boost import boosted_stage
from jaxagent.batch.targets import policy_samples, token_mean
from jaxagent.credit.attribution import Attribution, Distribution, Fusion, Sigma, Skip, cosine_alpha
from jaxagent.credit.step_judge import ATTRIBUTE, StepJudge, script_labels
from jaxagent.data.iteration import IterationOf
from jaxagent.eval.ways import opened_by
from jaxagent.learn.terms import clipped_pg, corrected, kl
from jaxagent.recipes.base import Materials, Recipe
from jaxagent.recipes.credit import refuse_over_steps
from jaxagent.recipes.policy import PG, PolicyOptions, policy_recipe, policy_update, task_source
from jaxagent.recipes.retrieval import RetrieverOptions
from jaxagent.recipes.rewards import returns_of
from jaxagent.recipes.skill_options import refuse_played_already
from jaxagent.recipes.unread import refuse_unread
from jaxagent.records import Record
from jaxagent.skills.experience import EXPERIENCE, ExperiencePool, script_experience
from jaxagent.skills.guided import GuidedRules, GuidedSource, Rounding, reopened
from jaxagent.skills.request import Requests
from jaxagent.stage import Source, Stage, Term


class AttributionOptions(Record):
    """judge: "script", or "endpoint" with `endpoint` (base_url, model, api_key_env …).

    alpha: weight of the labels beside the outcome's; decay: "cosine" takes it to 0 over the stage.
    steps: iterations in which labels are asked for; 0 is all. The rest: see `Fusion` in credit/attribution.py.
    """

    judge: Literal["script", "endpoint"] = "script"
    endpoint: ReaderOptions | None = None
    alpha: float = Field(default=0.1, ge=0)
    beta: float = Field(default=1.0, ge=0)
    decay: Literal["none", "cosine"] = "none"
    steps: int = Field(default=0, ge=0)
    sigma: Sigma = "traj_equal_step"
    orm_distribution: Distribution = "last_step"
    inconsistent: float = Field(default=1.0, ge=0, le=1)
    sqrt_length: bool = False
    skip: Skip = "none"

    @model_validator(mode="after")
    def _fits(self) -> AttributionOptions:
        if (self.judge == "endpoint") != (self.endpoint is not None):
            raise ValueError(
                "judge: endpoint goes with `endpoint` (base_url, model …), judge: script with none"
            )
        return self

    def fusion(self) -> Fusion:
        return Fusion(
            self.beta, self.sigma, self.orm_distribution, self.inconsistent, self.sqrt_length, self.skip
        )

    def alpha_at(self, iteration: int, total: int) -> float:
        if self.steps and iteration >= self.steps:
            return 0.0
        return cosine_alpha(self.alpha, iteration, total) if self.decay == "cosine" else self.alpha


class NavigatingOptions(Record):
    """eta: share of a task's rollouts that are guided; rounding: floor is the paper's, round the code's.

    writer: who writes experiences: an endpoint's record, or "script", which copies workflows and first errors.
    every, examples: iterations between readings, and plain episodes of a task that a reading sees.
    keep_share: share of the guided rollouts that is trained with the experiences in its prompt, clipped as the rest.
    """

    eta: float = Field(default=0.5, ge=0, le=1)
    rounding: Rounding = "floor"
    writer: Literal["script"] | ReaderOptions = "script"
    retriever: RetrieverOptions = RetrieverOptions()
    top_k: int = Field(default=5, ge=1)
    max_chars: int = Field(default=4000, ge=1)
    pool: int = Field(default=1024, ge=1)
    every: int = Field(default=1, ge=1)
    examples: int = Field(default=4, ge=1)
    keep_share: float = Field(default=0.0, ge=0, le=1)

    def over(self, inner: Source, materials: Materials) -> GuidedSource:
        rules = GuidedRules(
            self.retriever.likeness(),
            self.eta,
            self.rounding,
            self.top_k,
            self.retriever.floor,
            self.max_chars,
            self.every,
            self.examples,
        )
        requests = Requests(materials.spec, self.retriever.asked())
        return GuidedSource(inner, ExperiencePool(self.pool), self._background(), requests, rules)

    def _background(self) -> Background:
        if isinstance(self.writer, ReaderOptions):
            return Background(self.writer.aux())
        return Background(AuxLM(ScriptedBackend({EXPERIENCE.name: script_experience})))


class AgentEvolverOptions(PolicyOptions):
    """navigating: experiences in a share of the rollouts; without it all are plain. kl_coef: 0 keeps no reference.

    boost: the upper clip of rollouts whose experiences were stripped.
    """

    iterations: int = Field(40, ge=1)
    tasks: int = Field(32, ge=1)
    attribution: AttributionOptions = AttributionOptions()
    navigating: NavigatingOptions | None = None
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.28, gt=0)
    boost: float = Field(0.6, gt=0)
    kl_coef: float = Field(0.001, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _per_step(cls, values: Any) -> Any:
        return refuse_over_steps(values, "agentevolver")

    @model_validator(mode="after")
    def _guided(self) -> AgentEvolverOptions:
        refuse_unread(self, "boost", read=self.navigating is not None, when="navigating")
        if self.navigating is None:
            return self
        refuse_played_already(self)
        if self.mismatch.mode != "none" or self.replay is not None:
            raise ValueError(
                "navigating strips experiences from what was sampled with them, so that the sampler's log-probs are "
                "those of other openings; drop mismatch and replay, which read them"
            )
        return self

    @property
    def scores_old(self) -> bool:
        """With stripped rollouts always: the sampler's log-probs must not stand in for old ones."""
        return self.off_policy or self.navigating is not None


def plain_stage(options: AgentEvolverOptions, materials: Materials) -> Stage:
    """Everything but the boost."""
    source = IterationOf(task_source(options, materials))
    asked, navigating = options.attribution, options.navigating
    terms = {PG: Term(clipped_pg(options.clip_low, options.clip_high), token_mean)}
    if options.kl_coef:
        terms["kl"] = Term(kl("k3"), token_mean, options.kl_coef)
    plain = Stage(
        name=materials.name,
        source=source,
        iterations=options.iterations,
        reward=returns_of(options.reward),
        credit=Attribution(
            StepJudge(_judge(asked)),
            alpha=lambda: asked.alpha_at(source.iteration, options.iterations),
            fusion=asked.fusion(),
        ),
        samples=partial(policy_samples, terms=tuple(terms)),
        terms=terms,
        needs=(("old",) if options.scores_old else ()) + (("reference",) if options.kl_coef else ()),
        sampling=materials.sampling,
        update=policy_update(options),
    )
    if navigating is None:
        return plain
    guided = navigating.over(source, materials)
    return _navigated(plain, guided, keep_share=navigating.keep_share, materials=materials)


def _navigated(stage: Stage, guided: GuidedSource, *, keep_share: float, materials: Materials) -> Stage:
    """With rollouts that experiences guide: stripped before they are scored; evaluations are repeated with them."""
    return replace(
        stage,
        source=guided,
        reopen=partial(reopened, renderer=materials.renderer, keep_share=keep_share),
        ways={"experiences": opened_by(guided.opening)},
        shown={"experiences": guided.pool.state},
    )


PLAIN = policy_recipe(AgentEvolverOptions, plain_stage)


def stage(options: AgentEvolverOptions, materials: Materials) -> Stage:
    """The boost comes last: a correction for the sampler is that of all tokens."""
    wide = clipped_pg(options.clip_low, options.boost)
    return boosted_stage(
        PLAIN.stage(options, materials), wide if options.mismatch.weigh is None else corrected(wide)
    )


def _judge(options: AttributionOptions) -> Background:
    if options.endpoint is not None:
        return Background(options.endpoint.aux())
    return Background(AuxLM(ScriptedBackend({ATTRIBUTE.name: script_labels})))


RECIPE = Recipe(AgentEvolverOptions, stage)
