"""ALFWorld as a run refers to it: options, prompt, metrics. docs/environments/alfworld.md describes them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Literal

from pydantic import Field

from jaxagent.envs.alfworld.engine import INSTALL
from jaxagent.envs.alfworld.env import AlfworldEnv, AnchorName, EngineName
from jaxagent.envs.alfworld.games import SPLITS, TYPES, Game, Type, data_folder, official_tasks, read_game
from jaxagent.envs.alfworld.generate import generated_game, generated_tasks
from jaxagent.envs.commands import USAGE, Player, Style, parse_command
from jaxagent.envs.entry import Entry, data_path, need
from jaxagent.envs.protocol import EnvSpec, ScriptedPolicy
from jaxagent.errors import ConfigError
from jaxagent.records import Record
from jaxagent.types import Message, Metrics, Prompt, StepResult, Task, Trajectory

SHORT: dict[str, str] = dict(zip(TYPES, ("pick", "look", "clean", "heat", "cool", "pick_two"), strict=True))
MAX_STEPS = 50
VARIABLE = "ALFWORLD_DATA"
DEFAULT_DATA = Path("~/.cache/alfworld")  # where alfworld-download puts the games
RULES = """\
You do a task in a household that is told in text. Each turn you give one command and read what comes of it.

The commands, with names as the game gives them (drawer 2, mug 1):
- go to <place>: the only way to see what is there
- open <place>, close <place>
- take <object> from <place>, move <object> to <place>: you carry one object at a time
- heat <object> with <microwave>, cool <object> with <fridge>, clean <object> with <sinkbasin>
- use <lamp>, slice <object> with <knife>, examine <object or place>, look, inventory
A command that cannot be carried out is answered "Nothing happens." """


class AlfworldOptions(Record):
    """games: the downloaded ones, or small ones of our own. data: folder of the download; "" takes $ALFWORLD_DATA.

    engine: "python" has the rules in Python, "textworld" runs the alfworld package. admissible: list the commands that
    would do something. answer: how the policy states its command (commands.py); "bare" also shortens the prompt to the
    game's own text. old_put, anchor: see AlfworldEnv.
    """

    games: Literal["official", "generated"] = "official"
    data: str = ""
    engine: EngineName = "python"
    types: tuple[Type, ...] = Field(TYPES, min_length=1)
    admissible: bool = False
    answer: Style = "think"
    old_put: bool = False
    anchor: AnchorName = "observation"


def prompt(style: Style, task: Task, first: StepResult) -> Prompt:
    if style == "bare":
        return Prompt((Message("user", first.observation),))
    return Prompt((Message("user", f"{RULES.strip()}\n{USAGE[style]}\n\n{first.observation}"),))


def expert(
    game: Callable[[Task], Game], style: Style, task: Task, rng: Random, sloppiness: float
) -> ScriptedPolicy:
    return Player(game(task).walkthrough, style, rng, sloppiness)


def metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """Share of episodes won, of all and of each kind of task: `success`, `success_pick`, … Means over episodes."""
    won: dict[str, list[bool]] = defaultdict(list)
    for trajectory in trajectories:
        won["success"].append(trajectory.success)
        won[f"success_{SHORT.get(trajectory.task.type, trajectory.task.type)}"].append(trajectory.success)
    return {name: sum(values) / len(values) for name, values in won.items()}


def alfworld_spec(options: AlfworldOptions) -> EnvSpec:
    """Raises ConfigError for missing games, for games of other rules than the engine's, for a missing package."""
    if options.engine == "textworld":
        need("textworld", install=INSTALL)
        need("alfworld", install=INSTALL)
    if options.games == "generated":
        tasks, game = partial(generated_tasks, options.types), generated_game
    else:
        folder = str(_folder(options))
        tasks, game = partial(official_tasks, folder, options.types), partial(read_game, folder)
    make = partial(
        AlfworldEnv,
        game,
        engine=options.engine,
        admissible=options.admissible,
        old_put=options.old_put,
        anchor=options.anchor,
    )
    return EnvSpec(
        name="alfworld",
        make=make,
        tasks=tasks,
        prompt=partial(prompt, options.answer),
        parse=partial(parse_command, style=options.answer),
        metrics=metrics,
        max_steps=MAX_STEPS,
        expert=partial(expert, game, options.answer),
        worker={"envs_per_worker": 16.0} if options.engine == "textworld" else {},
    )


def _folder(options: AlfworldOptions) -> Path:
    """The folder of the splits, after a look at one game's rules."""
    fallback = DEFAULT_DATA.expanduser()
    use_fallback = not options.data and not os.environ.get(VARIABLE) and fallback.is_dir()
    root = data_path(
        str(fallback) if use_fallback else options.data,
        variable=VARIABLE,
        what="the games of ALFWorld",
        fetch=(
            f"Fetch them with `pip install alfworld` and `alfworld-download` (into {DEFAULT_DATA}, which is found), or "
            "name the folder that holds json_2.1.1; or set env.options.games=generated for small games that need no "
            "download."
        ),
    )
    folder = data_folder(root)
    if options.engine == "python":
        split = next(split for split in SPLITS if (folder / split).is_dir())
        sample = official_tasks(str(folder), TYPES, split)[0]
        if not read_game(str(folder), sample).known_rules:
            raise ConfigError(
                f"{folder}: the games' rules are not those of json_2.1.1 as alfworld 0.4 ships them, which "
                "env.options.engine='python' has; set env.options.engine=textworld (pip install alfworld)"
            )
    return folder


ENTRY = Entry(AlfworldOptions, alfworld_spec)
