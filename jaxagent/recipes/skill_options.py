"""What the recipes share that keep a skill bank: options, and the source that holds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from pydantic import Field

from jaxagent.auxlm.blocking import ReaderOptions
from jaxagent.auxlm.client import AuxLimits, AuxLM, ScriptedBackend
from jaxagent.eval.ways import opened_by
from jaxagent.recipes.base import Materials
from jaxagent.recipes.policy import PolicyOptions, task_source
from jaxagent.skills.bank import SkillBank
from jaxagent.skills.prompt import full_text, workflow_text
from jaxagent.skills.source import SkillRules, SkillSource
from jaxagent.skills.summarise import SUMMARISE, SummariserPool, script_summary
from jaxagent.stage import Way
from jaxagent.types import Task

SCOPES: Mapping[str, Callable[[Task], str]] = {
    "task": lambda task: task.task_id,
    "scenario": lambda task: task.scenario or task.task_id,
    "type": lambda task: task.type or task.task_id,
}
TEXTS = {"full": full_text, "workflow": workflow_text}


class SummariserOptions(ReaderOptions):
    """What it writes of an episode is long."""

    max_tokens: int = Field(default=2048, ge=1)


class SkillOptions(PolicyOptions):
    """ucb_c: exploration weight. buffer_max: skills of a buffer. skill_chars: a longer lesson is cut at its end.

    scope: tasks that share a buffer: a task its own (the paper's), or those of a scenario or a type. With the latter
           two, evaluations are repeated with the best skill in the prompt ("greedy+skills").
    skill_text: "workflow" shows code alone, for models that know nothing else.
    summariser: "script" extracts the steps that ran, without a language model; or a record of an endpoint.
    summary_wait_s: how long an iteration waits for summaries that are being written; null waits for all, so that a run
                    repeats itself. With 0 they are written beside the next rollouts, and seen an iteration later.
    """

    ucb_c: float = Field(1.0, ge=0)
    buffer_max: int = Field(16, ge=1)
    scope: Literal["task", "scenario", "type"] = "task"
    skill_text: Literal["full", "workflow"] = "full"
    skill_chars: int = Field(4000, ge=1)
    summariser: Literal["script"] | SummariserOptions = "script"
    summary_wait_s: float | None = Field(None, ge=0)


OF_BANK = tuple(SkillOptions.model_fields.keys() - PolicyOptions.model_fields.keys())


def skill_source(
    options: SkillOptions, materials: Materials, *, in_rollouts: bool = False, weights: str = "current"
) -> SkillSource:
    """Tasks of the run with a skill bank beside them. in_rollouts, weights: see SkillRules."""
    rules = SkillRules(
        c=options.ucb_c,
        scope=SCOPES[options.scope],
        text=TEXTS[options.skill_text],
        max_chars=options.skill_chars,
        in_rollouts=in_rollouts,
        weights=weights,
    )
    pool = SummariserPool(_summariser(options), patience_s=options.summary_wait_s)
    return SkillSource(task_source(options, materials), SkillBank(options.buffer_max), pool, rules)


def refuse_played_already(options: PolicyOptions) -> None:
    """For recipes whose rollouts have skills in their prompts."""
    if options.rollouts_from:
        raise ValueError(
            "skills belong into the prompts of rollouts, and stored ones were played without; drop rollouts_from"
        )


def skill_ways(options: SkillOptions, source: SkillSource) -> dict[str, Way]:
    """Evaluations beside the plain one: with skills, where a task that was never trained on has some."""
    return {} if options.scope == "task" else {"skills": opened_by(source.opening)}


def _summariser(options: SkillOptions) -> AuxLM:
    if isinstance(options.summariser, SummariserOptions):
        return options.summariser.aux()
    return AuxLM(ScriptedBackend({SUMMARISE.name: script_summary}), AuxLimits())
