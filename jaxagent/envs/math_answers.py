"""Single-turn mathematics: the last `\\boxed{…}` of the message against the right answer.

Tasks come from a JSON Lines file a split, {"problem", "answer"} (and "task_id" if there is one); without files from
generated arithmetic. math-verify decides whether the two are equal, in a child process that is killed when it takes too
long: 9^{9^{9^9}} is a wrong answer, not a hung run.
"""

from __future__ import annotations

import functools
import json
import re
import zlib
from collections.abc import Sequence
from functools import partial
from random import Random

from pydantic import Field

from jaxagent.envs.entry import Entry, need
from jaxagent.envs.json_lines import read_records
from jaxagent.envs.judge_process import judge
from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.verdicts import verdict_means
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

GRADER = "jaxagent.envs.math_grade:grade"
SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
MAX_ANSWER = 2_000  # characters; what is longer is no answer
BRACE = re.compile(r"\\boxed\{|[{}]")
GENERATED = {"train": (256, range(6)), "dev": (32, range(6, 7)), "test": (64, range(7, 8))}
OPERATIONS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


class Problem(Record):
    problem: str
    answer: str | int | float
    task_id: str = ""


class MathOptions(Record):
    """files: split -> JSON Lines file; none: generated arithmetic with numbers below `largest`.

    grade_s: seconds to compare two answers. bare: a message without a box is the answer itself.
    calculations: 6*7 is an answer where 42 is the right one, as math-verify itself has it. Else only a number is: a
    policy could earn the reward by writing the question down.
    """

    files: dict[str, str] = Field(default={})
    largest: int = Field(default=100, ge=10)
    grade_s: float = Field(default=5.0, gt=0)
    bare: bool = False
    calculations: bool = False


@functools.cache
def _read(path: str) -> tuple[Problem, ...]:
    return tuple(read_records(path, Problem, "env.options.files"))


def problems(options: MathOptions, split: str) -> Sequence[Problem]:
    known = options.files or GENERATED
    if split not in known:
        raise ConfigError(f"math has no split {split!r}; its splits are {sorted(known)}")
    if options.files:
        return _read(options.files[split])
    return [generated(split, n, options.largest) for n in range(GENERATED[split][0])]


def generated(split: str, number: int, largest: int) -> Problem:
    """One sum, difference or product. A hash of its text decides the split, so that none is in two."""
    rng = Random(f"math/{split}/{number}")
    while True:
        sign = rng.choice(list(OPERATIONS))
        first, second = rng.randrange(largest), rng.randrange(largest)
        text = f"What is {first} {sign} {second}?"
        if zlib.crc32(text.encode()) % 8 in GENERATED[split][1]:
            return Problem(problem=text, answer=str(OPERATIONS[sign](first, second)))


class MathAnswers:
    """One problem, one answer."""

    def __init__(self, options: MathOptions):
        self._options = options

    def reset(self, task: Task) -> StepResult:
        self._gold, self._given, self._right = str(task.meta["answer"]), "", False
        return StepResult(str(task.meta["problem"]), anchor=task.task_id)

    def step(self, action: Action) -> StepResult:
        if action.error:
            return StepResult(action.error, ExecStatus.INVALID, done=True)
        self._given = action.text
        if self._given.strip() == self._gold.strip():
            self._right = True
            return StepResult("The answer was handed in.", done=True)
        asked = (self._gold, self._given, self._options.calculations)
        answer = judge(GRADER, asked, seconds=self._options.grade_s)
        if answer.fault == "hang":
            return StepResult("The answer takes too long to evaluate.", ExecStatus.TIMEOUT, done=True)
        if answer.fault:
            return StepResult("The answer cannot be read.", ExecStatus.RUNTIME_ERROR, done=True)
        if not isinstance(answer.value, bool):
            raise EnvFailure("garbage", f"{GRADER} answered {answer.value!r}")
        self._right = answer.value
        return StepResult("The answer was handed in.", done=True)

    def evaluate(self) -> Evaluation:
        failures = () if self._right else ("the answer is not the right one",)
        info = {"score": float(self._right), "answer": self._given[:MAX_ANSWER]}
        return Evaluation(self._right, int(self._right), 1, failures, info)

    def snapshot(self) -> bytes:
        return json.dumps([self._right, self._given]).encode()

    def restore(self, state: bytes) -> None:
        self._right, self._given = json.loads(state)

    def close(self) -> None:
        """The grader's process serves the next episode."""


class Expert:
    """Boxes the right answer. It errs with probability `sloppiness`."""

    def __init__(self, options: MathOptions, task: Task, rng: Random, sloppiness: float):
        wrong = rng.random() < sloppiness
        self._answer = str(rng.randrange(options.largest)) if wrong else str(task.meta["answer"])

    def act(self, observation: str) -> str:
        return f"\\boxed{{{self._answer}}}"


def tasks(options: MathOptions, split: str) -> Sequence[Task]:
    found = []
    for number, problem in enumerate(problems(options, split)):
        name = problem.task_id or f"math/{split}/{number}"
        meta = {"problem": problem.problem, "answer": str(problem.answer)}
        found.append(Task(name, "math", split, scenario=name, seed=number, meta=meta))
    return found


def prompt(task: Task, first: StepResult) -> Prompt:
    return Prompt((Message("system", SYSTEM), Message("user", first.observation)))


def last_boxed(text: str) -> str | None:
    """The content of the last \\boxed{…} whose braces close; None if there is none. Time is linear in the text."""
    opened: list[
        tuple[bool, int]
    ] = []  # braces that wait to be closed: whether a box's, where the content begins
    content: tuple[int, int] | None = None
    for brace in BRACE.finditer(text):
        if brace[0] != "}":
            opened.append((brace[0] != "{", brace.end()))
        elif opened:
            boxed, start = opened.pop()
            if boxed and (content is None or start > content[0]):
                content = start, brace.start()
    return None if content is None else text[content[0] : content[1]]


def parse(options: MathOptions, message: Message) -> Action:
    """The boxed answer. A message that was cut inside its box has none."""
    boxed = last_boxed(message.content)
    answer = message.content if boxed is None and options.bare else boxed
    if answer is None:
        return Action(error="Found no answer. Put it within \\boxed{}.")
    if not answer.strip() or len(answer) > MAX_ANSWER:
        return Action(error=f"The answer has {len(answer.strip())} characters; expected 1 to {MAX_ANSWER}.")
    return Action(text=answer.strip())


def metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """accuracy, and boxed: the share of messages that held an answer."""
    measures = {
        "accuracy": lambda verdict: verdict.success,
        "boxed": lambda verdict: bool(verdict.info["answer"]),
    }
    return verdict_means(trajectories, measures)


def math_spec(options: MathOptions) -> EnvSpec:
    """Raises ConfigError without math-verify, DataError for a faulty file."""
    need("math_verify", install="pip install 'jaxagent[math]'")
    for split in options.files:
        problems(options, split)
    return EnvSpec(
        name="math",
        make=partial(MathAnswers, options),
        tasks=partial(tasks, options),
        prompt=prompt,
        parse=partial(parse, options),
        metrics=metrics,
        max_steps=1,
        expert=partial(Expert, options),
        worker={"step_s": 90.0 + 2 * options.grade_s},
    )


ENTRY = Entry(MathOptions, math_spec)
