"""Show a skill to a model: the same opening with a lesson in it. In: a `Prompt` and a `Skill`. Out: a `Prompt`.

The lesson joins the system message if there is one, else it stands before the first user message, so that a
template's default system prompt stays. Only the opening changes: action tokens align by suffix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from jaxagent.errors import DataError
from jaxagent.skills.bank import Skill
from jaxagent.types import Prompt


def full_text(skill: Skill) -> str:
    """Analyses and workflow, for models that read."""
    parts = ["A lesson from an earlier attempt at this task."]
    if skill.success_analysis:
        parts.append(f"What worked: {skill.success_analysis}")
    if skill.mistake_analysis:
        parts.append(f"What went wrong: {skill.mistake_analysis}")
    if skill.golden_workflow:
        parts.append("Workflow:\n" + "\n".join(skill.golden_workflow))
    return "\n".join(parts)


def workflow_text(skill: Skill) -> str:
    """The workflow alone, for small models that know code and observations only."""
    return "\n".join(skill.golden_workflow) or skill.mistake_analysis or skill.success_analysis


def inject(prompt: Prompt, skill: Skill, *, text: Callable[[Skill], str] = full_text) -> Prompt:
    """The prompt with the skill's text in its first system message, else in its first user message."""
    messages = list(prompt.messages)
    for role, join in (("system", "{old}\n\n{new}"), ("user", "{new}\n\n{old}")):
        for index, message in enumerate(messages):
            if message.role == role:
                content = (
                    join.replace("{new}", "\0").replace("{old}", message.content).replace("\0", text(skill))
                )
                messages[index] = replace(message, content=content)
                return replace(prompt, messages=tuple(messages))
    raise DataError(
        "a skill needs a system or user message in the prompt to stand in; this prompt has neither"
    )
