"""A Gymnasium environment whose observations are text, or that draws itself as text (`render_mode="ansi"`).

    env: {name: gymnasium, options: {id: FrozenLake-v1, render: true, actions: [Left, Down, Right, Up],
          kwargs: {is_slippery: false}, splits: {train: 64, test: 16}, max_steps: 20}}

Actions are text (spaces.Text), or names of a Discrete space's numbers. A task is a seed; everything else is decided by
`reset(seed=…)`. Whether an episode counts as solved is a rule of the options: Gymnasium itself knows rewards only.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from pydantic import Field

from jaxagent.envs.entry import Entry, need
from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.reference import resolve
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

INSTALL = "pip install 'jaxagent[gymnasium]'"
SPLITS_APART = 1_000_000  # between the seeds of two splits
COLOURED = re.compile(r"\x1b\[[\d;]*m(.*?)\x1b\[0?m", re.DOTALL)
ACTION = re.compile(r"<action>(.*?)(?:</action>|\Z)", re.DOTALL | re.IGNORECASE)


class GymnasiumOptions(Record):
    """id: a registered id ("module:Id-v0" imports the module first), or factory: "package.module:make" (path: its
    folder), called with `kwargs`.

    splits:  number of tasks by split.
    actions: names of a Discrete space's numbers, in order.
    render:  the observation is what `render()` draws (render_mode="ansi"), not what the environment returns.
    success: "reward" (the return reaches `threshold`), "terminated", or "info" (the last info's `info_key` is true).
    prompt:  the system message. expert: "package.module:NAME", (task, rng, sloppiness) -> scripted policy.
    tags:    an action stands between <action> and </action>; otherwise the whole message is the action.
    """

    id: str = ""
    factory: str = ""
    path: str = ""
    kwargs: dict[str, Any] = Field(default={})
    splits: dict[str, int] = Field(default={"train": 256, "test": 64}, min_length=1)
    max_steps: int = Field(default=50, ge=1)
    actions: tuple[str, ...] = ()
    render: bool = False
    success: Literal["reward", "terminated", "info"] = "reward"
    threshold: float = 1.0
    info_key: str = "success"
    prompt: str = ""
    expert: str = ""
    tags: bool = False


def make_theirs(options: GymnasiumOptions) -> Any:
    """The user's environment. Raises ConfigError if it cannot be made or its spaces are not text."""
    gymnasium = need("gymnasium", install=INSTALL)
    kwargs = {**options.kwargs, **({"render_mode": "ansi"} if options.render else {})}
    if bool(options.id) == bool(options.factory):
        raise ConfigError(
            f"env.options: id={options.id!r}, factory={options.factory!r}; give exactly one of them"
        )
    factory = (
        resolve(options.factory, path=options.path, key="env.options.factory") if options.factory else None
    )
    if options.path and factory is None:
        resolve(f"{options.id.partition(':')[0]}:__name__", path=options.path, key="env.options.id")
    try:
        env = factory(**kwargs) if factory else gymnasium.make(options.id, disable_env_checker=True, **kwargs)
    except Exception as exc:
        raise ConfigError(
            f"env.options: {options.id or options.factory} with {kwargs} cannot be made: {type(exc).__name__}: {exc}"
        ) from exc
    fault = _unfit(env, options, gymnasium.spaces)
    if fault:
        env.close()
        raise ConfigError(f"env.options: {options.id or options.factory}: {fault}")
    return env


def _unfit(env: Any, options: GymnasiumOptions, spaces: Any) -> str:
    """What an agent that reads and writes text could not use, or ""."""
    actions, seen = env.action_space, env.observation_space
    if isinstance(actions, spaces.Discrete):
        if len(options.actions) != int(actions.n):
            return f"{int(actions.n)} actions, {len(options.actions)} names in env.options.actions; name each of them"
        if len({name.lower() for name in options.actions}) != len(options.actions):
            return f"env.options.actions={list(options.actions)}: two names are the same"
    elif not isinstance(actions, spaces.Text):
        return f"its action space is {actions}; expected Text or Discrete"
    elif options.actions:
        return "its actions are text; drop env.options.actions"
    if not options.render and not isinstance(seen, spaces.Text):
        return f"its observation space is {seen}; expected Text, or render: true where it can draw itself as text"
    return ""


class GymnasiumText:
    """One episode of the user's environment."""

    def __init__(self, options: GymnasiumOptions):
        self._options, self._env = options, make_theirs(options)

    def reset(self, task: Task) -> StepResult:
        numpys = np.random.RandomState(task.seed % 2**32)
        self._generators = random.Random(task.seed).getstate(), numpys.get_state()
        with self._own_generators():
            observation, info = self._env.reset(seed=task.seed)
        self._env.action_space.seed(task.seed)
        self._return, self._terminated, self._info = 0.0, False, info
        return self._answer(observation)

    def step(self, action: Action) -> StepResult:
        if action.error:
            return StepResult(action.error, ExecStatus.INVALID, anchor=self._anchor)
        names = [name.lower() for name in self._options.actions]
        if names and action.text.lower() not in names:
            text = f"{action.text[:80]!r} is no action. The actions are {', '.join(self._options.actions)}."
            return StepResult(text, ExecStatus.INVALID, anchor=self._anchor)
        theirs = self._start + names.index(action.text.lower()) if names else action.text
        if not names and not self._env.action_space.contains(theirs):
            text = f"That is no action of {self._env.action_space}."
            return StepResult(text, ExecStatus.INVALID, anchor=self._anchor)
        with self._own_generators():
            observation, reward, terminated, truncated, info = self._env.step(theirs)
        self._return += float(reward)
        self._terminated, self._info = bool(terminated), info
        return self._answer(observation, reward=float(reward), done=bool(terminated or truncated))

    def evaluate(self) -> Evaluation:
        options = self._options
        solved = {
            "reward": self._return >= options.threshold - 1e-9,
            "terminated": self._terminated,
            "info": bool(self._info.get(options.info_key)),
        }[options.success]
        failures = (
            () if solved else (f"not so: success by {options.success}; the return is {self._return:g}",)
        )
        return Evaluation(bool(solved), int(solved), 1, failures, {"score": self._return})

    def close(self) -> None:
        self._env.close()

    @contextlib.contextmanager
    def _own_generators(self) -> Iterator[None]:
        """This episode's global generators: an environment may draw from them, and others live in this process."""
        before = random.getstate(), np.random.get_state()  # noqa: NPY002
        random.setstate(self._generators[0])
        np.random.set_state(self._generators[1])  # noqa: NPY002
        try:
            yield
        finally:
            self._generators = random.getstate(), np.random.get_state()  # noqa: NPY002
            random.setstate(before[0])
            np.random.set_state(before[1])  # noqa: NPY002

    @property
    def _start(self) -> int:
        return int(getattr(self._env.action_space, "start", 0))

    def _answer(self, observation: Any, *, reward: float = 0.0, done: bool = False) -> StepResult:
        text = plain(self._env.render() if self._options.render else observation)
        self._anchor = text
        return StepResult(text, done=done, reward=reward, anchor=text)


def plain(drawn: Any) -> str:
    """Text without terminal colours; what was coloured stands in brackets: there it shows where the player is."""
    if not isinstance(drawn, str):
        raise TypeError(f"the observation is {type(drawn).__name__}, not text")
    return COLOURED.sub(lambda match: f"[{match[1]}]", drawn).strip("\n")


def tasks(options: GymnasiumOptions, split: str) -> Sequence[Task]:
    if split not in options.splits:
        raise ConfigError(f"gymnasium has no split {split!r}; its splits are {sorted(options.splits)}")
    name = options.id or options.factory
    first = SPLITS_APART * list(options.splits).index(split)
    names = [f"{name}/{split}/{n}" for n in range(options.splits[split])]
    return [Task(task, "gymnasium", split, task, seed=first + n) for n, task in enumerate(names)]


def prompt(options: GymnasiumOptions, task: Task, first: StepResult) -> Prompt:
    rules = [options.prompt] if options.prompt else []
    if options.actions:
        rules.append(f"Actions: {', '.join(options.actions)}.")
    if options.tags:
        rules.append("Write one action in each turn, between <action> and </action>.")
    system = (Message("system", "\n".join(rules)),) if rules else ()
    return Prompt((*system, Message("user", first.observation)))


def parse(options: GymnasiumOptions, message: Message) -> Action:
    found = ACTION.findall(message.content) if options.tags else [message.content]
    text = found[-1].strip() if found else ""
    wanted = "Write one action between <action> and </action>." if options.tags else "Write one action."
    return Action(text=text) if text else Action(error=f"Found no action. {wanted}")


def metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """Means over episodes of success and return."""
    measures = {"success": lambda verdict: verdict.success, "return": lambda verdict: verdict.info["score"]}
    return verdict_means(trajectories, measures)


def gymnasium_spec(options: GymnasiumOptions) -> EnvSpec:
    """Makes the environment once, so that what does not fit is known before the run."""
    make_theirs(options).close()
    expert = resolve(options.expert, path=options.path, key="env.options.expert") if options.expert else None
    return EnvSpec(
        name="gymnasium",
        make=partial(GymnasiumText, options),
        tasks=partial(tasks, options),
        prompt=partial(prompt, options),
        parse=partial(parse, options),
        metrics=metrics,
        max_steps=options.max_steps,
        expert=expert,
    )


ENTRY = Entry(GymnasiumOptions, gymnasium_spec)
