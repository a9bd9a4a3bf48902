"""How an episode opens and how a message becomes a command. In: options. Out: `Prompt`, `Action`.

The layout is verl-agent's (the one that GiGPO, SALT and SIRI train with), in words of our own: who you are, the task,
the page, the admissible actions, and how to answer. Every later page is a message of its own.
"""

from __future__ import annotations

import re

from jaxagent.chat.tags import after_thinking, first_tag
from jaxagent.envs.webshop.env import COMMAND
from jaxagent.envs.webshop.options import WebshopOptions
from jaxagent.types import Action, Message, Prompt, StepResult, Task

OPENING = """\
You are an expert at shopping on the WebShop site, on your own.
Your task: {task}.

You see one page at a time, as text. Two kinds of action change it:
- search[words] looks for products; it needs a page with a search bar.
- click[name] follows a button, a product id or an option that the page shows.
Find a product that fits, choose the options asked for, then click[buy now]: that ends the task.
{answer}

The current page:
{page}"""
TAGGED = """\
In every turn first reason about the page between <think> and </think>, then give exactly one action between \
<action> and </action>, for example <action>search[red lamp]</action>."""
UNTAGGED = "Answer every page with one action and nothing else, for example search[red lamp]."
ACTION_LINE = re.compile(r"^action:", re.IGNORECASE | re.MULTILINE)
USAGE = "Give one action: search[words] or click[name]"


def prompt(options: WebshopOptions, task: Task, first: StepResult) -> Prompt:
    """A model without tags is a tiny one: it gets the page and, where the page lacks it, the instruction."""
    asked = first.info["instruction"]
    if options.tags:
        return Prompt((Message("user", OPENING.format(task=asked, answer=TAGGED, page=first.observation)),))
    if options.layout == "official":
        return Prompt((Message("system", UNTAGGED), Message("user", first.observation)))
    return Prompt((Message("user", f"{asked}\n{first.observation}"),))


def parse(options: WebshopOptions, message: Message) -> Action:
    """The command of a message: in its first <action> tag after the thinking, or else the message itself."""
    text = after_thinking(message.content)
    tagged = first_tag(text, "action")
    if options.tags and tagged is None:
        return Action(error=f"{USAGE} between <action> and </action>.")
    found = tagged[1] if options.tags and tagged else ACTION_LINE.split(text)[-1]
    found = found.strip()
    return Action(text=found) if COMMAND.fullmatch(found) else Action(error=f"{USAGE}.")


def spoken(options: WebshopOptions, thought: str, command: str) -> str:
    """A message that gives this command, as the prompt asks for it."""
    return f"<think>{thought}</think>\n<action>{command}</action>" if options.tags else command
