"""A text game of two turns for small pre-trained models: name the right door, then the right item.

    You need the lamp. The lamp is behind the blue door. Doors: red, blue, green.      blue
    The blue door is open. You see: coin, lamp, hat. Take the lamp.                    lamp

Both turns are read off the text, so nothing has to be known or searched; what is learnt is to answer with
one word and to copy the right one. Held-out tasks pair colours and items that never occur together in training.
The verdict counts two tests, right door and right item: `passed / total` is the partial credit, and each turn's
half is also its step reward. Answers carry no verb: a policy that is first paid for `open blue` answers `open …`
at the second turn too, and stops trying to take anything.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from jaxagent.envs.entry import Entry, NoOptions
from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.verdicts import verdict_means
from jaxagent.errors import ConfigError
from jaxagent.types import (
    Action,
    Evaluation,
    ExecStatus,
    Message,
    Metrics,
    Prompt,
    StepResult,
    Task,
    Trajectory,
)

COLOURS = ("red", "blue", "green", "yellow", "black", "white", "brown", "orange")
ITEMS = ("lamp", "coin", "hat", "book", "rope", "cup", "ring", "map", "bell", "drum")
CHOICES = 3  # doors on show, and items behind the right one
SPLITS = {"train": 6, "dev": 2, "test": 2}  # items a colour is paired with, in each split
ROOMS = {"train": 4, "dev": 1, "test": 2}  # tasks a pair, differing in the other doors and items
SYSTEM = "You play a text game. Answer with one word and nothing else."
EXAMPLE = (  # a whole game as chat turns; its words are in no task
    Message("user", "You need the pen. The pen is behind the pink door. Doors: grey, pink, purple."),
    Message("assistant", "pink"),
    Message("user", "The pink door is open. You see: pen, ball, key. Take the pen."),
    Message("assistant", "pen"),
)
USAGE = "Answer with one word and nothing else."
WORD = re.compile(r"([a-z]+)[.!]?", re.IGNORECASE)


def tasks(split: str) -> list[Task]:
    """The tasks of a split. Colour c is paired with items c, c+1, … (mod 10), dealt to the splits in order.

    Every colour occurs in every split, every item in train, and no pair in two splits.
    """
    if split not in SPLITS:
        raise ConfigError(f"doors has no split {split!r}; its splits are {sorted(SPLITS)}")
    first = sum(size for name, size in SPLITS.items() if list(SPLITS).index(name) < list(SPLITS).index(split))
    pairs = [
        (colour, ITEMS[(index + offset) % len(ITEMS)])
        for index, colour in enumerate(COLOURS)
        for offset in range(first, first + SPLITS[split])
    ]
    return [
        Task(
            task_id=f"doors/{split}/{colour}-{item}-{room}",
            env="doors",
            split=split,
            scenario=f"{colour}-{item}",
            seed=room,
            meta={"colour": colour, "item": item},
        )
        for colour, item in pairs
        for room in range(ROOMS[split])
    ]


@dataclass(frozen=True)
class Expert:
    """Plays one game from the task alone. At each message it errs with probability `sloppiness`."""

    task: Task
    rng: random.Random
    sloppiness: float

    def act(self, observation: str) -> str:
        opening = observation.startswith("You need")
        word = str(self.task.meta["colour" if opening else "item"])
        if self.rng.random() >= self.sloppiness:
            return word
        others = [other for other in (COLOURS if opening else ITEMS) if other != word]
        return self.rng.choice((self.rng.choice(others), f"the {word}", observation))


def expert(task: Task, rng: random.Random, sloppiness: float) -> Expert:
    return Expert(task, rng, sloppiness)


class Doors:
    """One game of at most two turns. State: which door is open, what was taken."""

    def reset(self, task: Task) -> StepResult:
        self.colour, self.item = str(task.meta["colour"]), str(task.meta["item"])
        rng = random.Random(task.task_id)  # seeding with a str does not depend on the process's hash seed
        self.doors = _shuffled(self.colour, COLOURS, rng)
        self.items = _shuffled(self.item, ITEMS, rng)
        self.opened, self.taken, self.turns, self.unlocked = "", "", 0, False
        return StepResult(
            f"You need the {self.item}. The {self.item} is behind the {self.colour} door. "
            f"Doors: {', '.join(self.doors)}.",
            anchor="start",
        )

    def step(self, action: Action) -> StepResult:
        self.turns += 1
        if action.error or not WORD.fullmatch(action.text):
            return self._answer(action.error or USAGE, ExecStatus.INVALID)
        return self._take(action.text) if self.unlocked else self._open(action.text)

    def _open(self, colour: str) -> StepResult:
        if colour not in self.doors:
            return self._answer(f"There is no {colour} door.", ExecStatus.RUNTIME_ERROR)
        self.opened = colour
        if colour != self.colour:
            return self._answer(f"The {colour} door is open. You see: nothing.")
        self.unlocked = True
        text = f"The {colour} door is open. You see: {', '.join(self.items)}. Take the {self.item}."
        return self._answer(text, reward=0.5)

    def _take(self, item: str) -> StepResult:
        if item not in self.items:
            return self._answer(f"There is no {item} here.", ExecStatus.RUNTIME_ERROR)
        self.taken = item
        return self._answer(f"You have the {item}.", reward=0.5 if item == self.item else 0.0)

    def _answer(self, text: str, status: ExecStatus = ExecStatus.OK, *, reward: float = 0.0) -> StepResult:
        done = bool(self.taken) or self.turns >= 2
        return StepResult(
            text, status, done=done, reward=reward, anchor=f"{self.opened or 'closed'}/{self.taken}"
        )

    def evaluate(self) -> Evaluation:
        checks = {
            "the right door was opened": self.unlocked,
            "the right item was taken": self.taken == self.item,
        }
        failures = tuple(f"not so: {name}" for name, passed in checks.items() if not passed)
        return Evaluation(success=not failures, passed=2 - len(failures), total=2, failures=failures)

    def snapshot(self) -> bytes:
        return json.dumps([self.opened, self.taken, self.turns, self.unlocked]).encode()

    def restore(self, state: bytes) -> None:
        self.opened, self.taken, self.turns, self.unlocked = json.loads(state)

    def close(self) -> None:
        """Nothing is held."""


def _shuffled(wanted: str, words: Sequence[str], rng: random.Random) -> list[str]:
    shown = [wanted, *rng.sample([word for word in words if word != wanted], CHOICES - 1)]
    rng.shuffle(shown)
    return shown


def prompt(task: Task, first: StepResult) -> Prompt:
    """One solved example as earlier turns of the conversation, then the game's first observation."""
    return Prompt((Message("system", SYSTEM), *EXAMPLE, Message("user", first.observation)))


def parse(message: Message) -> Action:
    """One word and nothing else; case and a final full stop do not matter."""
    match = WORD.fullmatch(message.content.strip())
    return Action(error=USAGE) if match is None else Action(text=match[1].lower())


def metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """Means: reward (tests passed / 2), success (both) and door (the first) per episode, invalid per step."""
    means = verdict_means(
        trajectories,
        {
            "reward": lambda verdict: verdict.passed / verdict.total,
            "success": lambda verdict: verdict.success,
            "door": lambda verdict: verdict.passed >= 1,
        },
    )
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    invalid = sum(step.exec_status is not ExecStatus.OK for step in steps) / max(len(steps), 1)
    return means and {**means, "invalid": invalid}


DOORS = EnvSpec(
    name="doors",
    make=Doors,
    tasks=tasks,
    prompt=prompt,
    parse=parse,
    metrics=metrics,
    max_steps=2,
    expert=expert,
)

ENTRY = Entry(NoOptions, lambda options: DOORS)
