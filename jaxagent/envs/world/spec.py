"""The embedded world as a run refers to it: `world_spec("easy")` for tiny models, "full" for real ones."""

from __future__ import annotations

from functools import partial
from typing import Literal

from jaxagent.chat.tools import parse_code
from jaxagent.envs.entry import Entry
from jaxagent.envs.protocol import EnvSpec, as_user
from jaxagent.envs.world.env import WorldEnv
from jaxagent.envs.world.expert import scripted_policy
from jaxagent.envs.world.functions import chain_policy
from jaxagent.envs.world.inline import InlineSandbox
from jaxagent.envs.world.tasks import LEVELS, tasks
from jaxagent.errors import ConfigError
from jaxagent.records import Record
from jaxagent.types import Message, Prompt, StepResult, Task

RULES = """\
You are an assistant that does a person's everyday tasks by writing Python. You work in turns. In each turn \
you write exactly one block of code between ```python and ```; it is executed, and what it prints (or the \
error it raises) comes back to you as the next message. Variables and functions stay defined between turns.

The person's apps are reached through `apis.<app>.<api>(argument=value, ...)`. You know none of them by heart:
- print(apis.api_docs.show_app_descriptions()) lists the apps,
- print(apis.api_docs.show_api_descriptions(app_name="notes")) lists the APIs of one app,
- print(apis.api_docs.show_api_doc(app_name="notes", api_name="search_notes")) documents one of them.
Read the documentation of an API before you call it for the first time. The `supervisor` app knows the \
person: show_profile, show_account_passwords, show_addresses, show_payment_cards. Most APIs take an \
access_token: the `login` of their app returns one, for the person's email and the password of that account.

Some advice:
- Take small steps, print what you need to see, and look at it before you go on.
- Results come in pages: raise page_index until a page is not full, or you miss records.
- Never invent ids, passwords, names or dates: look them up. Friends, relatives and colleagues are in `phone`.
- Change exactly what was asked for and nothing else.
- Decide everything yourself; nobody answers questions.

When the task is done, call apis.supervisor.complete_task(). If it asks for information, pass it, as a bare \
value without a sentence around it: apis.supervisor.complete_task(answer=12). If it can't be done, pass \
status="fail"."""


def prompt_full(task: Task, first: StepResult) -> Prompt:
    who = first.info
    about = (
        f"I am {who['name']}; my email is {who['email']} and my phone number is {who['phone_number']}. "
        f"It is {who['now']}.\nTask: {first.observation}"
    )
    return Prompt((Message("system", RULES), Message("user", about)))


def prompt_easy(task: Task, first: StepResult) -> Prompt:
    return Prompt((Message("user", first.observation),))


def observe_full(text: str) -> Message:
    return Message("user", f"Output:\n```\n{text}\n```")


def world_spec(level: str = "full") -> EnvSpec:
    """The specification of a level. Splits: train, dev, test_normal, test_challenge."""
    if level not in LEVELS:
        raise ConfigError(f"the embedded world has no level {level!r}; known: {', '.join(LEVELS)}")
    easy = level == "easy"
    return EnvSpec(
        name=LEVELS[level],
        make=WorldEnv,
        tasks=partial(tasks, level),
        prompt=prompt_easy if easy else prompt_full,
        parse=partial(parse_code, whole=easy),
        observe=as_user if easy else observe_full,
        max_steps=8 if easy else 40,
        expert=scripted_policy,
        chain_expert=chain_policy,
        rehearse=partial(WorldEnv, sandbox=InlineSandbox),
        max_observation_chars=400 if easy else 16_000,
    )


class WorldOptions(Record):
    level: Literal["easy", "full"] = "full"


ENTRY = Entry(WorldOptions, lambda options: world_spec(options.level))
