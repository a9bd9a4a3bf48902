"""How a question opens and how a message becomes an action: Search-R1's tags, in words of our own."""

from __future__ import annotations

from jaxagent.chat.tags import first_tag
from jaxagent.types import Action, Message, Prompt, StepResult, Task, ToolCall

RULES = """\
Answer the question. Each time you learn something new, first reason about it between <think> and </think>. If you \
lack knowledge, search for it with <search>words</search>; what is found comes back between <information> and \
</information>. You may search several times. Once you know enough, give the answer alone, without a sentence around \
it, for example <answer>Beijing</answer>.
Question: {question}"""
USAGE = (
    "No action was found. To search, write the words between <search> and </search>; to answer, write the answer "
    "between <answer> and </answer>."
)
EMPTY = "The {name} is empty. Write something between <{name}> and </{name}>."
ACTIONS = ("search", "answer")


def prompt(task: Task, first: StepResult) -> Prompt:
    return Prompt((Message("user", RULES.format(question=first.observation)),))


def parse(message: Message) -> Action:
    """The first complete search or answer outside the thinking; the rest of the message is ignored."""
    text = without_thinking(message.content)
    found = [(tag[0], name, tag[1]) for name in ACTIONS if (tag := first_tag(text, name))]
    if not found:
        return Action(error=USAGE)
    _, name, body = min(found)
    if not body.strip():
        return Action(error=EMPTY.format(name=name))
    return Action(tool_calls=(ToolCall(name, {"text": body.strip()}),))


def without_thinking(text: str) -> str:
    """The text outside <think> … </think>; without its end, a <think> opens nothing."""
    first, *rest = text.split("<think>")
    return first + "".join(part.partition("</think>")[2] if "</think>" in part else part for part in rest)
