"""BFCL multi-turn as a run refers to it: options, prompts, metrics.

Splits: `base`, `miss_func`, `miss_param`, `long_context` (200 each), `all`, and `train`/`test`, the halves of base.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from random import Random

from jaxagent.envs.bfcl import data
from jaxagent.envs.bfcl.calls import Format, parse_hermes, parse_python
from jaxagent.envs.bfcl.env import STEPS, BfclEnv
from jaxagent.envs.bfcl.expert import Expert
from jaxagent.envs.bfcl.tools import Describe, listing, offered, tool
from jaxagent.envs.entry import Entry
from jaxagent.envs.protocol import EnvSpec
from jaxagent.records import Record
from jaxagent.types import Message, Metrics, Prompt, StepResult, Task, Trajectory

TURNS = 8  # of the longest conversation
RULES = """\
You help a user by calling functions. Whenever you call any, write nothing but a list of calls with named \
arguments: [first_function(argument="value"), second_function()]. Their results come back as the next message; go on \
calling until the user's request is met as far as it can be. Then answer in words: a message that holds no call ends \
your turn. If no function serves, or a needed value is missing, say so instead of guessing.

The functions:
"""


class BfclOptions(Record):
    """Settings of the environment.

    format:             how calls are written: `<tool_call>` JSON with the tools in the chat template (hermes), or
                        lists of Python calls with the functions in a system message (python).
    describe:           full, calls (nothing of what functions return) or signatures (names and types only).
    drop_excluded:      leave out the functions that some entries list as excluded; the package of today offers them.
    split_seed:         shuffles base before it is cut into train and test.
    """

    format: Format = "hermes"
    describe: Describe = "full"
    drop_excluded: bool = False
    split_seed: int = 42


def prompt_hermes(options: BfclOptions, task: Task, first: StepResult) -> Prompt:
    docs = offered(data.find(task), drop_excluded=options.drop_excluded)
    tools = tuple(tool(doc, options.describe) for doc in docs)
    return Prompt((Message("user", first.observation),), tools)


def prompt_python(options: BfclOptions, task: Task, first: StepResult) -> Prompt:
    docs = offered(data.find(task), drop_excluded=options.drop_excluded)
    system = RULES + listing(docs, options.describe)
    return Prompt((Message("system", system), Message("user", first.observation)))


def expert(format: Format, task: Task, rng: Random, sloppiness: float) -> Expert:
    return Expert(task, rng, sloppiness, format=format)


def metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """Accuracy (percent of entries) by category; `multi_turn_overall`, their unweighted mean, once all four are there.

    Several rollouts of an entry are averaged first. irrelevance: share of episodes that call nothing in turns where
    nothing can be done; forced: share that ran into the 20 steps of a turn.
    """
    verdicts = [trajectory for trajectory in trajectories if trajectory.evaluation is not None]
    if not verdicts:
        return {}
    by_entry: dict[tuple[str, str], list[float]] = defaultdict(list)
    for trajectory in verdicts:
        by_entry[trajectory.task.type, trajectory.task.task_id].append(float(trajectory.success))
    by_category: dict[str, list[float]] = defaultdict(list)
    for (category, _), scores in by_entry.items():
        by_category[category].append(sum(scores) / len(scores))
    accuracy = {name: 100 * sum(scores) / len(scores) for name, scores in by_category.items()}
    found: Metrics = {f"multi_turn_{name}": value for name, value in sorted(accuracy.items())}
    if set(accuracy) == set(data.CATEGORIES):
        found["multi_turn_overall"] = sum(accuracy.values()) / len(accuracy)
    for name in ("irrelevance", "forced"):
        found[name] = sum(bool(t.evaluation.info[name]) for t in verdicts if t.evaluation) / len(verdicts)
    return found


def bfcl_spec(options: BfclOptions) -> EnvSpec:
    """The specification. Raises ConfigError where the package is missing."""
    data.check_installed()
    hermes = options.format == "hermes"
    return EnvSpec(
        name="bfcl",
        make=partial(BfclEnv, format=options.format, describe=options.describe),
        tasks=partial(data.tasks, seed=options.split_seed),
        prompt=partial(prompt_hermes if hermes else prompt_python, options),
        parse=parse_hermes if hermes else parse_python,
        metrics=metrics,
        max_steps=TURNS * (STEPS + 1),
        expert=partial(expert, options.format),
        max_observation_chars=100_000,
        worker={"step_s": 20.0, "memory_gb": 2.0},
    )


ENTRY = Entry(BfclOptions, bfcl_spec)
