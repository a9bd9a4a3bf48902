"""TextWorld as a run refers to it: options, splits, prompt, metrics. docs/environments/textworld.md describes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Literal

from pydantic import Field

from jaxagent.envs.commands import USAGE, Player, Style, parse_command
from jaxagent.envs.entry import Entry, need
from jaxagent.envs.protocol import EnvSpec, ScriptedPolicy
from jaxagent.envs.textworld.env import INSTALL, TextWorldEnv
from jaxagent.envs.textworld.making import Recipe, about
from jaxagent.envs.verdicts import verdict_means
from jaxagent.errors import ConfigError
from jaxagent.records import Record
from jaxagent.types import Message, Metrics, Prompt, StepResult, Task, Trajectory

Kind = Literal["cooking", "simple", "coin_collector", "treasure_hunter", "custom"]
SEEDS = {"train": 0, "valid": 1_000_000, "test": 2_000_000}  # first seed of each split
LEVELS = {"cooking": 4, "simple": 1, "coin_collector": 300, "treasure_hunter": 30, "custom": 20}
COOKING = (  # of level 1, 2, …
    ("--recipe", "1", "--take", "1"),
    ("--recipe", "2", "--take", "2", "--open", "--cook"),
    ("--recipe", "3", "--take", "3", "--open", "--cook", "--cut", "--go", "6"),
    ("--recipe", "3", "--take", "3", "--open", "--cook", "--cut", "--drop", "--go", "12"),
)
RULES = """\
You play a text adventure. Each turn you give one command and read what the game answers. Usual commands: look, \
inventory, examine …, go north (or south, east, west), open …, close …, unlock … with …, take …, take … from …, \
put … on …, insert … into …, drop …, eat …, and in a kitchen cook … with …, slice … with …, chop … with …, \
dice … with …, prepare meal. The game's opening says what you have to do."""


class TextWorldOptions(Record):
    """game: one of tw-make's. level: its difficulty; length of the quest for `custom`, 1 to 4 for `cooking`.

    train, valid, test: how many games a split has. folder: where games are kept. make_s: seconds that making one may
    take. admissible: list the commands that would do something. answer: see commands.py; "bare" shortens the prompt.
    """

    game: Kind = "cooking"
    level: int = Field(1, ge=1)
    train: int = Field(200, ge=1, le=1_000_000)
    valid: int = Field(20, ge=1, le=1_000_000)
    test: int = Field(20, ge=1, le=1_000_000)
    folder: str = "~/.cache/jaxagent/textworld"
    make_s: float = Field(100.0, gt=0)
    admissible: bool = False
    answer: Style = "think"
    max_steps: int = Field(50, ge=1)


def arguments(game: Kind, level: int, split: str) -> tuple[str, ...]:
    """What tw-make is told. `cooking` and `simple` have distributions of their own for the splits."""
    if game == "cooking":
        return ("tw-cooking", *COOKING[level - 1], "--split", split)
    if game == "simple":
        return (
            "tw-simple",
            "--rewards",
            "dense",
            "--goal",
            "detailed",
            *(["--test"] if split == "test" else []),
        )
    if game == "custom":
        return ("custom", "--world-size", "5", "--nb-objects", "10", "--quest-length", str(level))
    return (f"tw-{game}", "--level", str(level))


def tasks(options: TextWorldOptions, split: str) -> list[Task]:
    if split not in SEEDS:
        raise ConfigError(f"textworld has no split {split!r}; its splits are {', '.join(SEEDS)}")
    kind = f"{options.game}-{options.level}"
    size = {"train": options.train, "valid": options.valid, "test": options.test}[split]
    seeds = range(SEEDS[split], SEEDS[split] + size)
    return [
        Task(f"textworld/{kind}/{split}/{seed}", "textworld", split, type=options.game, seed=seed)
        for seed in seeds
    ]


def recipe(options: TextWorldOptions, task: Task) -> Recipe:
    made_by = arguments(options.game, options.level, task.split)
    return Recipe(options.folder, made_by, task.seed, options.make_s)


def prompt(style: Style, task: Task, first: StepResult) -> Prompt:
    head = "" if style == "bare" else f"{RULES}\n{USAGE[style]}\n\n"
    return Prompt((Message("user", f"{head}{first.observation}"),))


def expert(
    recipe: Callable[[Task], Recipe], style: Style, task: Task, rng: Random, sloppiness: float
) -> ScriptedPolicy:
    return Player(tuple(about(recipe(task))["walkthrough"]), style, rng, sloppiness)


def metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """Means over episodes: `success`, games won; `score`, points as a share of the game's highest score."""
    measures = {
        "success": lambda verdict: verdict.success,
        "score": lambda verdict: verdict.passed / verdict.total,
    }
    return verdict_means(trajectories, measures)


def textworld_spec(options: TextWorldOptions) -> EnvSpec:
    """Raises ConfigError for a level that the game does not have and for the missing package."""
    need("textworld", install=INSTALL)
    if options.level > LEVELS[options.game]:
        raise ConfigError(
            f"env.options.level={options.level}: {options.game} has levels 1 to {LEVELS[options.game]}"
        )
    made_by = partial(recipe, options)
    return EnvSpec(
        name="textworld",
        make=partial(TextWorldEnv, made_by, admissible=options.admissible),
        tasks=partial(tasks, options),
        prompt=partial(prompt, options.answer),
        parse=partial(parse_command, style=options.answer),
        metrics=metrics,
        max_steps=options.max_steps,
        expert=partial(expert, made_by, options.answer),
        worker={"step_s": 20.0},
    )


ENTRY = Entry(TextWorldOptions, textworld_spec)
