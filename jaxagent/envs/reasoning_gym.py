"""reasoning-gym's puzzles: any of its generators by name, single turn, scored by the generator's own scorer.

The package lives in a child process (reasoning_items.py), which is killed when a scorer takes too long on what a model
wrote. An item of a generator is drawn from Random(seed + index), so neighbouring seeds share items: the splits' seeds
are ten million apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import numpy as np
from pydantic import Field

from jaxagent.envs.entry import Entry, need
from jaxagent.envs.judge_process import Answer, judge
from jaxagent.envs.protocol import EnvSpec
from jaxagent.errors import ConfigError, EnvFailure
from jaxagent.records import Record
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

ITEMS = "jaxagent.envs.reasoning_items:ask"
SEEDS = {"train": 0, "dev": 10_000_000, "test": 20_000_000}
FULL = 0.99  # a score from which an item counts as solved
PARTS = 100  # a score is passed / total in hundredths
MAX_ANSWER = 8_000
ITEM_S = 60.0  # to make an item; some generators search for one
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
SYSTEM = """\
You are given a problem. Think it through first, then give the final answer, and nothing else, between <answer> and \
</answer>. Keep to the format that the problem asks for."""


class ReasoningOptions(Record):
    """datasets: generator -> its own configuration (without seed and size). tasks: items of every generator, by split.

    score_s: seconds to score one answer. bare: a message without tags is the answer itself.
    """

    datasets: dict[str, dict[str, Any]] = Field(min_length=1)
    tasks: dict[str, int] = Field(default={"train": 500, "dev": 50, "test": 100})
    score_s: float = Field(default=5.0, gt=0)
    bare: bool = False


class ReasoningGym:
    """One item, one answer."""

    def __init__(self, options: ReasoningOptions):
        self._options = options

    def reset(self, task: Task) -> StepResult:
        self._task, self._score, self._given = task, 0.0, ""
        return StepResult(item(task)["question"], anchor=task.task_id)

    def step(self, action: Action) -> StepResult:
        if action.error:
            return StepResult(action.error, ExecStatus.INVALID, done=True)
        self._given = action.text
        answer = _ask(self._task, action.text, self._options.score_s)
        if answer.fault == "hang":
            return StepResult("The answer takes too long to score.", ExecStatus.TIMEOUT, done=True)
        if answer.fault:  # scorers raise on answers that they cannot read
            return StepResult("The answer cannot be read.", ExecStatus.RUNTIME_ERROR, done=True)
        self._score = min(max(float(answer.value["score"]), 0.0), 1.0)
        return StepResult("The answer was handed in.", done=True)

    def evaluate(self) -> Evaluation:
        solved = self._score >= FULL
        return Evaluation(
            success=solved,
            passed=PARTS if solved else int(PARTS * self._score),
            total=PARTS,
            failures=() if solved else (f"score {self._score:.3f}",),
            info={"score": self._score, "answer": self._given},
        )

    def snapshot(self) -> bytes:
        return json.dumps([self._score, self._given]).encode()

    def restore(self, state: bytes) -> None:
        self._score, self._given = json.loads(state)

    def close(self) -> None:
        """The child serves the next episode."""


def item(task: Task) -> Mapping[str, str]:
    """Question and stored answer. Raises EnvFailure where the generator fails."""
    answer = _ask(task, None, ITEM_S)
    if answer.fault:
        raise EnvFailure("reset", f"{task.task_id}: {answer.fault}: {answer.message}")
    return answer.value


def _ask(task: Task, text: str | None, seconds: float) -> Answer:
    meta = task.meta
    return judge(ITEMS, (meta["dataset"], meta["config"], meta["index"], text), seconds=seconds)


class Expert:
    """Says the stored answer. It errs with probability `sloppiness`."""

    def __init__(self, options: ReasoningOptions, task: Task, rng: Random, sloppiness: float):
        self._text = str(rng.randrange(100)) if rng.random() < sloppiness else item(task)["answer"]
        self._bare = options.bare

    def act(self, observation: str) -> str:
        return self._text if self._bare else f"<answer>{self._text}</answer>"


def tasks(options: ReasoningOptions, split: str) -> Sequence[Task]:
    if split not in options.tasks:
        raise ConfigError(f"reasoning_gym has no split {split!r}; its splits are {sorted(options.tasks)}")
    size = options.tasks[split]
    found = []
    for index in range(size):  # the generators in turn, so that the first tasks are of every kind
        for name, config in options.datasets.items():
            text = json.dumps({**config, "seed": SEEDS[split], "size": size}, sort_keys=True)
            meta = {"dataset": name, "config": text, "index": index}
            task_id = f"reasoning_gym/{split}/{name}/{index}"
            found.append(Task(task_id, "reasoning_gym", split, task_id, type=name, seed=index, meta=meta))
    return found


def prompt(task: Task, first: StepResult) -> Prompt:
    return Prompt((Message("system", SYSTEM), Message("user", first.observation)))


def parse(options: ReasoningOptions, message: Message) -> Action:
    found = ANSWER.findall(message.content)
    if not found and not (options.bare and message.content.strip()):
        return Action(error="Found no answer. Write it between <answer> and </answer>.")
    text = found[-1] if found else message.content
    if len(text) > MAX_ANSWER:
        return Action(error=f"The answer has {len(text)} characters; at most {MAX_ANSWER} are read.")
    return Action(text=text.strip())


def metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """score: mean of the official scores, of all and by generator; solved: share of full scores."""
    judged = [item for item in trajectories if item.evaluation is not None]
    if not judged:
        return {}
    by_type: dict[str, list[float]] = {}
    for trajectory in judged:
        assert trajectory.evaluation is not None
        by_type.setdefault(trajectory.task.type, []).append(float(trajectory.evaluation.info["score"]))
    scores = [score for found in by_type.values() for score in found]
    return {
        "score": float(np.mean(scores)),
        "solved": float(np.mean([trajectory.success for trajectory in judged])),
        **{f"score/{name}": float(np.mean(found)) for name, found in sorted(by_type.items())},
    }


def reasoning_spec(options: ReasoningOptions) -> EnvSpec:
    """Raises ConfigError for a missing package, unknown generators and configurations that they refuse."""
    unknown = sorted(set(options.tasks) - set(SEEDS))
    if unknown:
        raise ConfigError(
            f"env.options.tasks: there is no split {unknown[0]!r}; the splits are {', '.join(SEEDS)}"
        )
    library = need("reasoning_gym", install="pip install 'jaxagent[reasoning]'")
    for name, config in options.datasets.items():
        try:
            library.create_dataset(name, **{**config, "seed": 0, "size": 1})
        except Exception as exc:
            raise ConfigError(
                f"env.options.datasets.{name}={config}: {type(exc).__name__}: {exc}; the generators are listed at "
                "https://github.com/open-thought/reasoning-gym"
            ) from exc
    return EnvSpec(
        name="reasoning_gym",
        make=partial(ReasoningGym, options),
        tasks=partial(tasks, options),
        prompt=prompt,
        parse=partial(parse, options),
        metrics=metrics,
        max_steps=1,
        expert=partial(Expert, options),
        worker={"step_s": 90.0 + 2 * options.score_s},
    )


ENTRY = Entry(ReasoningOptions, reasoning_spec)
