"""ScienceWorld as the run refers to it: options, tasks, prompt, parser, metrics, expert."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Literal

from pydantic import Field

from jaxagent.chat.tags import after_thinking, first_tag
from jaxagent.envs.entry import Entry
from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.scienceworld.env import ScienceWorld, world_of
from jaxagent.envs.scienceworld.java import check_java
from jaxagent.envs.scienceworld.splits import VARIATIONS, split_of
from jaxagent.envs.scienceworld.worlds import recorded
from jaxagent.errors import ConfigError
from jaxagent.records import Record
from jaxagent.types import Action, Message, Metrics, Prompt, StepResult, Task, Trajectory

STEP_S = 30.0
MAX_COMMAND = 300  # characters; the longest command that means anything has about 100

ACTIONS = """open/close OBJ, activate/deactivate OBJ, connect OBJ to OBJ, disconnect OBJ, use OBJ [on OBJ], \
look around, look at OBJ, look in OBJ, read OBJ, move OBJ to OBJ, pick up OBJ, put down OBJ, pour OBJ into OBJ, \
dunk OBJ into OBJ, mix OBJ, go to LOC, teleport to LOC, eat OBJ, flush OBJ, focus on OBJ, wait, wait1, inventory"""

SYSTEM = """You carry out a science experiment in a text world of rooms, tools and materials.
Commands: {actions}
OBJ is the name of something you can see or hold, LOC a room. "focus on" tells the world which object the task is \
about: a wrong one ends the experiment. When the world asks which object is meant, the command is the number of the \
choice. One command a message.
{form}"""
FORMS = {
    "tags": "Think first, then give the command: <think>your reasoning</think><action>the command</action>",
    "plain": "Write the command and nothing else.",
}
LINE = "action:"  # of a message without tags; case does not matter


class ScienceWorldOptions(Record):
    """types: task types to keep; none keeps all. variations: of each type and split, the first so many; 0 is all.

    simplifications: as the simulator names them, comma-separated; "easy" is all of them. format: how a message
    holds its command.
    """

    types: tuple[str, ...] = ()
    variations: int = Field(default=0, ge=0)
    simplifications: str = "easy"
    format: Literal["tags", "plain"] = "tags"
    max_steps: int = Field(default=100, ge=1)


def make_spec(options: ScienceWorldOptions) -> EnvSpec:
    """Raises ConfigError for unknown task types and when the package or Java is missing."""
    unknown = sorted(set(options.types) - set(VARIATIONS))
    if unknown:
        raise ConfigError(
            f"env.options.types names {', '.join(unknown)}; ScienceWorld's are {', '.join(VARIATIONS)}"
        )
    check_java()
    return EnvSpec(
        name="scienceworld",
        make=partial(ScienceWorld, options.simplifications),
        tasks=partial(tasks, options),
        prompt=partial(prompt, form=options.format),
        parse=partial(parse, form=options.format),
        max_steps=options.max_steps,
        metrics=metrics,
        expert=partial(expert, options),
        rehearse=partial(ScienceWorld, options.simplifications, rehearsal=True),
        worker={"step_s": STEP_S, "envs_per_worker": 1},
    )


def tasks(options: ScienceWorldOptions, split: str) -> list[Task]:
    if split not in ("train", "dev", "test"):
        raise ConfigError(f"scienceworld has no split {split!r}; its splits are train, dev and test")
    return [
        Task(
            task_id=f"scienceworld/{name}/{number}",
            env="scienceworld",
            split=split,
            scenario=name,
            type=name,
            meta={"variation": number},
        )
        for name in options.types or VARIATIONS
        for number in split_of(VARIATIONS[name])[split][: options.variations or None]
    ]


def prompt(task: Task, first: StepResult, *, form: str) -> Prompt:
    system = SYSTEM.format(actions=ACTIONS, form=FORMS[form])
    return Prompt((Message("system", system), Message("user", first.observation)))


def parse(message: Message, *, form: str) -> Action:
    """tags: what stands in the first <action> after the thinking, or on the last line `Action: …`. plain: all of it."""
    text = after_thinking(message.content)
    command = text.strip() if form == "plain" else _command(text)
    if not command or "\n" in command or len(command) > MAX_COMMAND:
        wanted = "one line with the command" if form == "plain" else "<action>the command</action>"
        return Action(error=f"No command was found. Write {wanted}.")
    return Action(text=command)


def _command(text: str) -> str:
    tag = first_tag(text, "action")
    if tag is not None:
        return tag[1].strip()
    lines = [line for line in map(str.strip, text.splitlines()) if line.lower().startswith(LINE)]
    return lines[-1][len(LINE) :].strip() if lines else ""


@dataclass
class Expert:
    """The simulator's own solution. Before each command, with probability `sloppiness`, a message without one."""

    commands: Sequence[str]
    form: str
    rng: Random
    sloppiness: float
    _next: int = 0
    _slipped: bool = False

    def act(self, observation: str) -> str:
        if not self._slipped and self.rng.random() < self.sloppiness:
            self._slipped = True
            return "What is next?\nLet me see."
        self._slipped = False
        command = self.commands[self._next] if self._next < len(self.commands) else "wait1"
        self._next += 1
        return command if self.form == "plain" else f"<action>{command}</action>"


def expert(options: ScienceWorldOptions, task: Task, rng: Random, sloppiness: float) -> Expert:
    commands = recorded().gold(world_of(task, options.simplifications))
    return Expert(commands, options.format, rng, sloppiness)


def metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """score: mean final score in percent, 0 where it was negative. score_by_type: mean of the types' means, as the
    paper reports it. success: share with 100. failed: share that ended with a fatal mistake.
    """
    judged = [(one.task.type, one.evaluation) for one in trajectories if one.evaluation is not None]
    if not judged:
        return {}
    by_type: defaultdict[str, list[float]] = defaultdict(list)
    for name, verdict in judged:
        by_type[name].append(100 * float(verdict.info["score"]))
    return {
        "score": sum(map(sum, by_type.values())) / len(judged),
        "score_by_type": sum(sum(scores) / len(scores) for scores in by_type.values()) / len(by_type),
        "success": sum(verdict.success for _, verdict in judged) / len(judged),
        "failed": sum(bool(verdict.info["failed"]) for _, verdict in judged) / len(judged),
    }


ENTRY = Entry(ScienceWorldOptions, make_spec)
