"""Show a skill to a model. In: a `Prompt` and a `Skill`. Out: the same opening with the lesson in it.

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
    """The prompt with the skill's text in it."""
    return add_lesson(prompt, text(skill))


def add_lesson(prompt: Prompt, lesson: str) -> Prompt:
    """The prompt with a lesson in its first system message, else in its first user message."""
    messages = list(prompt.messages)
    roles = [message.role for message in messages]
    if "system" in roles:
        index = roles.index("system")
        content = f"{messages[index].content}\n\n{lesson}"
    elif "user" in roles:
        index = roles.index("user")
        content = f"{lesson}\n\n{messages[index].content}"
    else:
        raise DataError("a lesson needs a system or user message to stand in; this prompt has neither")
    messages[index] = replace(messages[index], content=content)
    return replace(prompt, messages=tuple(messages))
