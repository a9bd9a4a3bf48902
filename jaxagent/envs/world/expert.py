"""Scripted agents: an expert that solves every task, and a sloppy one with the mistakes of a weak model.

    policy = scripted_policy(task, random.Random(0), sloppiness=0.75)
    message = policy.act(observation)          the reset observation first, then each step's

The expert acts through the public interface only: it reads documentation, looks its passwords up and copies values out
of the observations. `sloppiness` is the chance that an episode carries one of the flaws below. A flaw that causes an
error is noticed with probability RECOVERY, and then repaired; otherwise the agent gives up.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from jaxagent.envs.world.easy import EASY_CHALLENGE, EASY_KINDS
from jaxagent.envs.world.full import FULL_KINDS
from jaxagent.envs.world.goal import CodeStep, Goal
from jaxagent.envs.world.tasks import LEVELS, build
from jaxagent.types import Task

RECOVERY = 0.35
WEAK, STRONG = 1.2, 0.6  # factors of sloppiness; two kinds of three are weak
MOST = 0.92  # some episodes of every kind stay right, or nothing could be learnt from trying
HABIT = 0.7
LOOP = re.compile(r"^(\s*for \w+ in .*\)):$", re.MULTILINE)
ARGUMENT = re.compile(r"(?<=[(,] )\w+(?==)|(?<=\()\w+(?==)")
WRONG_NAMES = ("name", "title", "id", "text", "tag", "query", "user")


@dataclass(frozen=True)
class Move:
    """One planned message. `kept`: its observation is one that later steps of the solution read."""

    code: CodeStep
    kept: bool = True


def plan(task: Task, goal: Goal, *, defined: Collection[str] = ()) -> list[CodeStep]:
    """The expert's steps, with the documentation and login turns of the full level before the solution.

    defined: functions that are there already; `pages` is then not defined again.
    """
    if task.env == LEVELS["easy"]:
        return list(goal.steps)
    apps = list(dict.fromkeys(lookup.split(".")[0] for lookup in goal.lookups))
    steps: list[CodeStep] = ["print(apis.api_docs.show_app_descriptions())"]
    steps += [f'print(apis.api_docs.show_api_descriptions(app_name="{app}"))' for app in apps]
    for lookup in goal.lookups:
        app, api = lookup.split(".")
        steps.append(f'print(apis.api_docs.show_api_doc(app_name="{app}", api_name="{api}"))')
    steps.append("print(apis.supervisor.show_profile())")
    steps.append("print(apis.supervisor.show_account_passwords())")
    helper = "" if "pages" in defined else PAGES
    return [*steps, lambda seen: login(apps, seen, helper), *goal.steps]


def login(apps: Sequence[str], seen: Sequence[str], helper: str) -> str:
    """Log in to the apps with the email and the passwords of the last two observations, and define a helper."""
    email = json.loads(seen[-2])["email"]
    passwords = {row["account_name"]: row["password"] for row in json.loads(seen[-1])}
    lines = [
        f'{app}_token = apis.{app}.login(username="{email}", password="{passwords[app]}")["access_token"]'
        for app in apps
        if app in passwords
    ]
    return "\n".join([*lines, helper] if helper else lines) or "pass"


PAGES = """
def pages(api, **arguments):
    found = []
    for index in range(100):
        page = api(page_index=index, page_limit=20, **arguments)
        found += page
        if len(page) < 20:
            break
    return found
""".rstrip()


class ScriptedPolicy:
    """Plays a plan. `act` returns an assistant message: plain code at the easy level, else a code block."""

    def __init__(self, task: Task, moves: list[Move], rng: random.Random):
        self._easy = task.env == LEVELS["easy"]
        self._moves, self._rng = moves, rng
        self._last: Move | None = None
        self._seen: list[str] = []

    def act(self, observation: str) -> str:
        if self._last is not None:
            if self._last.kept:
                self._seen.append(observation)
            elif failed(observation) and self._rng.random() > RECOVERY:
                self._moves.clear()
        self._last = self._moves.pop(0) if self._moves else Move(self._end())
        code = self._last.code if isinstance(self._last.code, str) else self._last.code(self._seen)
        return code if self._easy else f"```python\n{code}\n```"

    def _end(self) -> str:
        return "apis.me.done()" if self._easy else "apis.supervisor.complete_task()"


def failed(observation: str) -> bool:
    return observation.startswith("Execution failed.") or bool(
        re.match(r"\w+(Error|Exception)\b", observation)
    )


# --- flaws: steps -> moves, or None where the flaw does not apply

Flaw = Callable[[list[CodeStep], random.Random], list[Move] | None]


def call(step: CodeStep, seen: Sequence[str]) -> str:
    return step if isinstance(step, str) else step(seen)


def password_turn(steps: list[CodeStep]) -> int | None:
    for i, step in enumerate(steps[:-1]):
        if isinstance(step, str) and ("apis.me.pw(" in step or "show_account_passwords" in step):
            return i
    return None


def guess(rng: random.Random) -> str:
    return "".join(rng.choice("bdfgklmnprst") + rng.choice("aeiou") for _ in range(2))


def no_login(steps: list[CodeStep], rng: random.Random) -> list[Move] | None:
    """Call an API that needs a token without having one."""
    i = password_turn(steps)
    if i is None or "apis.me" not in call(steps[i], ()):
        return None
    after = steps[i + 1]
    bad = Move(lambda seen: call(after, [*seen, ""]).partition("\n")[2], kept=False)
    return [*map(Move, steps[:i]), bad, *map(Move, steps[i:])]


def guessed_password(steps: list[CodeStep], rng: random.Random) -> list[Move] | None:
    """Log in with a made-up password."""
    i, word = password_turn(steps), guess(rng)
    if i is None or "apis.me" not in call(steps[i], ()):
        return None
    after = steps[i + 1]
    bad = Move(lambda seen: call(after, [*seen, word]), kept=False)
    return [*map(Move, steps[:i]), bad, *map(Move, steps[i:])]


def wrong_argument(steps: list[CodeStep], rng: random.Random) -> list[Move] | None:
    """Get the name of an argument wrong."""
    places = [i for i, step in enumerate(steps) if not isinstance(step, str) or ARGUMENT.search(step)]
    if not places:
        return None
    i = rng.choice(places)
    step = steps[i]

    def mutate(seen: Sequence[str]) -> str:
        return ARGUMENT.sub(
            lambda match: rng.choice([name for name in WRONG_NAMES if name != match[0]]),
            call(step, seen),
            count=1,
        )

    return [*map(Move, steps[:i]), Move(mutate, kept=False), *map(Move, steps[i:])]


def partial_loop(steps: list[CodeStep], rng: random.Random) -> list[Move] | None:
    """Treat the first item only."""
    moves, hit = [], False
    for step in steps:
        hit = hit or (isinstance(step, str) and LOOP.search(step) is not None)
        moves.append(Move(lambda seen, step=step: LOOP.sub(r"\1[:1]:", call(step, seen))))
    return moves if hit else None


def guessed_answer(steps: list[CodeStep], rng: random.Random) -> list[Move] | None:
    """Answer without having looked."""
    if isinstance(steps[-1], str) and "answer=" not in steps[-1]:
        return None
    value = rng.choice([rng.randint(1, 9), rng.randint(100, 999), f'"{rng.randint(1000, 9999)}"'])
    end = (
        "apis.me.done" if "apis.me" in call(steps[-1], ['{"phone": 0}']) else "apis.supervisor.complete_task"
    )
    return [Move(f"{end}(answer={value})")]


def giving_up(steps: list[CodeStep], rng: random.Random) -> list[Move] | None:
    """Stop in the middle."""
    return [Move(step) for step in steps[: rng.randrange(len(steps) - 1)]]


FLAWS: tuple[Flaw, ...] = (
    no_login,
    guessed_password,
    wrong_argument,
    partial_loop,
    guessed_answer,
    giving_up,
)


def scripted_policy(task: Task, rng: random.Random, sloppiness: float = 0.0) -> ScriptedPolicy:
    """An expert for the task (sloppiness 0), or with that chance, on average over kinds, one with a flaw.

    A sloppy expert is bad at some kinds of tasks and better at others (WEAK and STRONG times `sloppiness`), and in
    each kind has a habit, the flaw it mostly falls for: a policy that imitates it gets whole kinds wrong at
    temperature 0, and right now and then when it samples.
    """
    _, goal = build(task)
    steps = plan(task, goal)
    kinds = EASY_KINDS | EASY_CHALLENGE if task.env == LEVELS["easy"] else FULL_KINDS
    kind = list(kinds).index(task.type)
    chance = 1.0 if sloppiness >= 1 else min(sloppiness * (WEAK if kind % 3 else STRONG), MOST)
    moves: list[Move] | None = None
    if rng.random() < chance:
        flaws = rng.sample(FLAWS, len(FLAWS))
        if rng.random() < HABIT:
            habit = kind // 2 % len(FLAWS)
            flaws = [*FLAWS[habit:], *FLAWS[:habit]]
        moves = next((made for flaw in flaws if (made := flaw(steps, rng)) is not None), None)
    return ScriptedPolicy(task, moves if moves is not None else [Move(step) for step in steps], rng)
