"""Show skills to a model. In: a `Prompt` and a `Skill`, or a library. Out: the same opening with their text in it.

The text joins the system message if there is one, else it stands before the first user message, so that a
template's default system prompt stays. Only the opening changes: action tokens align by suffix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from textwrap import indent

from jaxagent.errors import DataError
from jaxagent.skills.bank import Skill
from jaxagent.skills.functions import Function, Library
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


LIBRARY = "These functions of yours are defined already. Call them where they help:"
HEADINGS = {"full": LIBRARY, "plain": ""}  # "plain" is for small models that know code and observations only


def library_text(library: Library, *, heading: str = LIBRARY, max_chars: int = 4000) -> str:
    """Signatures and docstrings of a library's functions; "" for none.

    The newest that fit into `max_chars` are shown. The others are defined as well: what is left out is not lost.
    """
    shown: list[str] = []
    room = max_chars - len(heading)
    for function in reversed(library):
        text = function_text(function)
        room -= len(text) + 1
        if room < 0:
            break
        shown.append(text)
    return "\n".join(([heading] if heading else []) + shown[::-1]) if shown else ""


def function_text(function: Function) -> str:
    """A function without its body, as Python writes it."""
    if not function.docstring:
        return function.signature
    return f"{function.signature}:\n" + indent(f'"""{function.docstring}"""', "    ")


def show_library(
    prompt: Prompt, library: Library, *, heading: str = LIBRARY, max_chars: int = 4000
) -> Prompt:
    """The prompt with the library's signatures and docstrings; the same prompt if there are none."""
    text = library_text(library, heading=heading, max_chars=max_chars)
    return insert(prompt, text) if text else prompt


def inject(prompt: Prompt, skill: Skill, *, text: Callable[[Skill], str] = full_text) -> Prompt:
    """The prompt with the skill's text in its first system message, else in its first user message."""
    return insert(prompt, text(skill))


def insert(prompt: Prompt, text: str) -> Prompt:
    """The prompt with a text in its first system message, else in its first user message."""
    messages = list(prompt.messages)
    roles = [message.role for message in messages]
    if "system" in roles:
        index = roles.index("system")
        content = f"{messages[index].content}\n\n{text}"
    elif "user" in roles:
        index = roles.index("user")
        content = f"{text}\n\n{messages[index].content}"
    else:
        raise DataError("a skill needs a system or user message to stand in; this prompt has neither")
    messages[index] = replace(messages[index], content=content)
    return replace(prompt, messages=tuple(messages))
