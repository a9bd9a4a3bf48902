"""How an episode opens: the layout of AppWorld's official ReAct prompt, in our own words.

system: the rules.  user/assistant turns: one small episode, worked through.  user: who asks, and the task.

The demonstration plays in a made-up world whose one app, `pantry`, exists nowhere in AppWorld: it shows how to find
an API, read about it, log in, go through pages and end, and gives nothing of the benchmark away.
"""

from __future__ import annotations

from typing import Any

from jaxagent.types import Message, Prompt, StepResult, Task

RULES = """\
You are an expert assistant who carries out a person's everyday tasks, entirely on your own, by writing Python. \
The person is your supervisor. You work in turns: in each turn you write a short thought if you need one and exactly \
one block of code between ```python and ```. The code is executed, and what it prints, or the error it raises, is \
shown to you as the next message. Variables, functions and imports stay defined from turn to turn.

Everything happens through the APIs of apps, called as `apis.<app>.<api>(argument=value)`. Three of them tell you \
all about the others:
- print(apis.api_docs.show_app_descriptions()) lists the apps,
- print(apis.api_docs.show_api_descriptions(app_name="...")) lists the APIs of one app,
- print(apis.api_docs.show_api_doc(app_name="...", api_name="...")) gives arguments and answer of one API.
The app `supervisor` knows your supervisor: show_profile, show_account_passwords, show_addresses, show_payment_cards."""

ADVICE = """\
Keep to this:
(1) Write a small step of code in each turn and look at its output before you go on; print what you need to see.
(2) Read the documentation of an API before you call it, and call nothing that the documentation does not list.
(3) Never make up values: e-mail addresses, passwords, ids, names and dates come from the APIs. Your supervisor's \
accounts and passwords are in the app `supervisor`; friends, relatives and colleagues are in the contacts of `phone`.
(4) Answers that come in pages are complete only when you have asked for every page (page_index).
(5) When the task speaks of a time, ask Python for the present date (datetime.now()) and mind the boundaries of days, \
weeks and years.
(6) "Files" are in the app `file_system`, not on a disk that Python could open.
(7) Do what was asked, completely, and change nothing else.
(8) Nobody answers questions: decide for yourself.
(9) When you are done, call apis.supervisor.complete_task(). If the task asks for an answer, pass it as a bare value \
without a sentence around it: apis.supervisor.complete_task(answer=42). If it can't be done, pass status="fail"."""

_EXAMPLE_TASK = """\
First an example, from another world with another app.

My name is Robin Example. My e-mail address is robin@example.com and my phone number is 0000000000.
Task: How many jars in my pantry are empty?"""

_EXAMPLE = (
    (
        "Let me see which apps there are.",
        "print(apis.api_docs.show_app_descriptions())",
        '[\n {"name": "api_docs", "description": "Documentation of all apps."},\n'
        ' {"name": "supervisor", "description": "The supervisor\'s data and the active task."},\n'
        ' {"name": "pantry", "description": "What a household has in stock."}\n]',
    ),
    (
        "The pantry app it is. Its APIs:",
        'print(apis.api_docs.show_api_descriptions(app_name="pantry"))',
        '[\n {"name": "login", "description": "Log in to an account."},\n'
        ' {"name": "show_jars", "description": "Jars of the account, page by page."},\n'
        ' {"name": "discard_jar", "description": "Throw a jar away."}\n]',
    ),
    (
        "I need show_jars, and a login before it.",
        'print(apis.api_docs.show_api_doc(app_name="pantry", api_name="login"))\n'
        'print(apis.api_docs.show_api_doc(app_name="pantry", api_name="show_jars"))',
        '{"api_name": "login", "parameters": [{"name": "username", "description": "Your e-mail address."}, '
        '{"name": "password"}], "response": {"access_token": "string"}}\n'
        '{"api_name": "show_jars", "parameters": [{"name": "access_token"}, {"name": "page_index", "default": 0}, '
        '{"name": "page_limit", "default": 5, "constraints": ["<= 20"]}], '
        '"response": [{"jar_id": 1, "label": "string", "grams_left": 1}]}',
    ),
    (
        "",
        'passwords = {a["account_name"]: a["password"] for a in apis.supervisor.show_account_passwords()}\n'
        "profile = apis.supervisor.show_profile()\n"
        'token = apis.pantry.login(username=profile["email"], password=passwords["pantry"])["access_token"]\n'
        "print(apis.pantry.show_jars(access_token=token))",
        '[\n {"jar_id": 3, "label": "rice", "grams_left": 250},\n {"jar_id": 8, "label": "beans", "grams_left": 0}\n]',
    ),
    (
        "Now all pages.",
        "jars, page = [], 0\n"
        "while True:\n"
        "    found = apis.pantry.show_jars(access_token=token, page_index=page, page_limit=20)\n"
        "    if not found:\n"
        "        break\n"
        "    jars += found\n"
        "    page += 1\n"
        'empty = [jar for jar in jars if jar["grams_left"] == 0]\n'
        "print(len(jars), len(empty))",
        "23 4",
    ),
    (
        "Four of 23 are empty. The task asks for this number.",
        "apis.supervisor.complete_task(answer=4)",
        "Execution successful.",
    ),
)


def observe(text: str) -> Message:
    """An output as the policy sees it."""
    return Message("user", f"Output:\n```\n{text}\n```")


def demonstration() -> list[Message]:
    """The worked example as turns of a conversation."""
    messages = [Message("user", _EXAMPLE_TASK)]
    for thought, code, output in _EXAMPLE:
        messages.append(Message("assistant", f"{thought}\n```python\n{code}\n```".lstrip()))
        messages.append(observe(output))
    return messages


def prompt(task: Task, first: StepResult, *, example: bool = True) -> Prompt:
    """`example=False` leaves the demonstration out, for models that know the format."""
    person: dict[str, Any] = first.info["supervisor"]
    asked = (
        f"My name is {person['first_name']} {person['last_name']}. My e-mail address is {person['email']} and my "
        f"phone number is {person['phone_number']}.\nTask: {first.observation}"
    )
    if not example:
        return Prompt((Message("system", f"{RULES}\n\n{ADVICE}"), Message("user", asked)))
    *shown, last = demonstration()
    turn = f"{last.content}\n\nThat was the example. Now the real world and the real task.\n\n{ADVICE}\n\n{asked}"
    return Prompt((Message("system", RULES), *shown, Message("user", turn)))
