"""Write a function that passes unit tests: single turn, or several with what the example tests said.

Tasks come from a JSON Lines file a split, `{"prompt", "tests", "entry_point"}` and optionally "public_tests" (shown as
feedback, and best quoted in the prompt), "solution" (for the expert) and "task_id"; without files from a small
generated set. The verdict is the fraction of `tests` passed, run by code_judge.py where the code can neither see nor
forge them.
"""

from __future__ import annotations

import functools
import json
import keyword
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random

from pydantic import Field, field_validator

from jaxagent.chat.tools import parse_code
from jaxagent.envs.code_judge import OWN_NAMES, JudgeLimits, Report, run_tests
from jaxagent.envs.entry import Entry
from jaxagent.envs.json_lines import read_records
from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.verdicts import verdict_means
from jaxagent.errors import ConfigError
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

SYSTEM = """\
You are an expert Python programmer. Write the function that is asked for, with its imports, in one block between \
```python and ```. Only the standard library is available; input and files are not. Unit tests call the function."""
AGAIN = "Correct the function and write it again, whole, between ```python and ```."
GENERATED = {"train": range(64), "test": range(64, 96)}
NO_CODE = "no code was handed in"


class Problem(Record):
    prompt: str
    tests: tuple[str, ...] = Field(min_length=1)
    entry_point: str
    public_tests: tuple[str, ...] = ()
    solution: str = ""
    task_id: str = ""

    @field_validator("entry_point")
    @classmethod
    def _is_name(cls, name: str) -> str:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"{name!r} is no function name")
        if name in OWN_NAMES:
            raise ValueError(f"the judge uses the name {name!r} itself; rename the function")
        return name


class CodeOptions(Record):
    """files: split -> JSON Lines file; none: the generated set. turns: messages of an episode; it ends before them when
    the example tests pass. bare: a message without a block is code itself.
    """

    files: dict[str, str] = Field(default={})
    turns: int = Field(default=1, ge=1)
    limits: JudgeLimits = JudgeLimits()
    bare: bool = False


@functools.cache
def _read(path: str) -> tuple[Problem, ...]:
    return tuple(read_records(path, Problem, "env.options.files"))


def problems(options: CodeOptions, split: str) -> Sequence[Problem]:
    """The problems of a split, in the file's order."""
    known = options.files or GENERATED
    if split not in known:
        raise ConfigError(f"code has no split {split!r}; its splits are {sorted(known)}")
    return _read(options.files[split]) if options.files else [generated(n) for n in GENERATED[split]]


def generated(number: int) -> Problem:
    """A small problem with four hidden tests and one that is shown; `number` decides everything."""
    rng = Random(f"code/{number}")
    by, name = number // 4 + 2, f"f{number}"
    what, body, calls = (
        (f"plus {by}", f"x + {by}", [(n, n + by) for n in (0, 7, -3, 41, 100)]),
        (f"times {by}", f"x * {by}", [(n, n * by) for n in (1, 0, -2, 9, 12)]),
        (f"modulo {by}", f"x % {by}", [(n, n % by) for n in (by, 1, 10 * by + 1, 17, -1)]),
        (f"repeated {by} times in a list", f"[x] * {by}", [(n, [n] * by) for n in (0, 5, -1, 8, 2)]),
    )[number % 4]
    rng.shuffle(calls)
    shown, *hidden = [f"assert {name}({given}) == {wanted}" for given, wanted in calls]
    return Problem(
        prompt=f"Write {name}(x): x {what}.\n{shown}",
        tests=tuple(hidden),
        entry_point=name,
        public_tests=(shown,),
        solution=f"def {name}(x):\n    return {body}",
        task_id=f"code/generated/{number}",
    )


class CodeTests:
    """One problem. State: the code handed in last."""

    def __init__(self, options: CodeOptions):
        self._options = options

    def reset(self, task: Task) -> StepResult:
        self._problem, self._code, self._turns = Problem.parse(task.meta["problem"]), "", 0
        return StepResult(self._problem.prompt, anchor=task.task_id)

    def step(self, action: Action) -> StepResult:
        self._turns += 1
        last = self._turns >= self._options.turns
        if action.error:
            return StepResult(f"{action.error} {AGAIN}", ExecStatus.INVALID, done=last, anchor=self._code)
        self._code = action.text
        if last:
            return StepResult("The function was handed in.", done=True, anchor=self._code)
        report = self._run(self._problem.public_tests)
        passed = sum(report.passed)
        text = f"{passed} of {len(report.passed)} example tests passed."
        if passed == len(report.passed) and report.loaded.exec_status is ExecStatus.OK:
            return StepResult(text, done=True, anchor=self._code)
        said = [report.loaded.error] if report.loaded.error else list(report.failures)
        lines = [text, *said, AGAIN]
        failed = report.loaded.exec_status
        status = ExecStatus.RUNTIME_ERROR if failed is ExecStatus.OK else failed
        return StepResult("\n".join(lines), status, anchor=self._code)

    def evaluate(self) -> Evaluation:
        tests = self._problem.tests
        if not self._code:
            return Evaluation(False, 0, len(tests), (NO_CODE,), {"score": 0.0})
        report = self._run(tests)
        passed = sum(report.passed)
        return Evaluation(
            success=passed == len(tests),
            passed=passed,
            total=len(tests),
            failures=report.failures,
            info={"score": passed / len(tests), "loaded": report.loaded.exec_status.value},
        )

    def snapshot(self) -> bytes:
        return json.dumps([self._turns, self._code]).encode()

    def restore(self, state: bytes) -> None:
        self._turns, self._code = json.loads(state)

    def close(self) -> None:
        """Children live for one run of the tests."""

    def _run(self, tests: Sequence[str]) -> Report:
        problem = self._problem
        return run_tests(self._code, tests, entry_point=problem.entry_point, limits=self._options.limits)


class Expert:
    """Writes the stored solution. It errs with probability `sloppiness`: the function then returns None."""

    def __init__(self, task: Task, rng: Random, sloppiness: float):
        self._problem, self._rng, self._sloppiness = Problem.parse(task.meta["problem"]), rng, sloppiness

    def act(self, observation: str) -> str:
        wrong = f"def {self._problem.entry_point}(*args):\n    return None"
        code = wrong if self._rng.random() < self._sloppiness else self._problem.solution
        return f"```python\n{code}\n```"


def tasks(options: CodeOptions, split: str) -> Sequence[Task]:
    found = []
    for number, problem in enumerate(problems(options, split)):
        name = problem.task_id or f"code/{split}/{number}"
        meta: Mapping[str, object] = {"problem": problem.model_dump()}
        found.append(Task(name, "code", split, scenario=name, seed=number, meta=meta))
    return found


def prompt(task: Task, first: StepResult) -> Prompt:
    return Prompt((Message("system", SYSTEM), Message("user", first.observation)))


def metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """Means over episodes: all tests passed, fraction of tests, and whether the last code ran at all."""
    measures = {
        "solved": lambda verdict: verdict.success,
        "test_fraction": lambda verdict: verdict.passed / verdict.total,
        "runs": lambda verdict: verdict.info.get("loaded") == "ok",
    }
    return verdict_means(trajectories, measures)


def code_spec(options: CodeOptions) -> EnvSpec:
    """Reads the files, so that a faulty line is known before the run. Several turns need example tests."""
    every = [problem for split in (options.files or GENERATED) for problem in problems(options, split)]
    if options.turns > 1 and not all(problem.public_tests for problem in every):
        raise ConfigError(
            f"env.options.turns={options.turns}: feedback needs `public_tests` in every problem; the hidden tests are "
            "never shown. Add them, or set turns to 1"
        )
    return EnvSpec(
        name="code",
        make=partial(CodeTests, options),
        tasks=partial(tasks, options),
        prompt=prompt,
        parse=partial(parse_code, blocks="all", whole=options.bare),
        metrics=metrics,
        max_steps=options.turns,
        expert=Expert if all(problem.solution for problem in every) else None,
        worker={"step_s": 3 * options.limits.total_s},
    )


ENTRY = Entry(CodeOptions, code_spec)
