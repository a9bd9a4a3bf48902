"""What an environment is, and how a run refers to it.

An `Env` is synchronous, single-use and lives in a worker process (envs/pool.py). An `EnvSpec` is the record
that the trainer's process holds: how to make the Env, which tasks there are, how an episode opens and how a
message becomes an action.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol, TypeVar, runtime_checkable

from jaxagent.errors import ConfigError, EnvFailure
from jaxagent.types import Action, Evaluation, Message, Metrics, Prompt, StepResult, Task, Trajectory

T = TypeVar("T")


@runtime_checkable
class Env(Protocol):
    """One episode of one task. Any exception it raises becomes an `EnvFailure` on the trajectory.

    Order of calls: reset, step*, evaluate (once), close (always, also after a failure).
    `step` gets actions with `error` set too, and answers them with an observation.
    """

    def reset(self, task: Task) -> StepResult: ...

    def step(self, action: Action) -> StepResult: ...

    def evaluate(self) -> Evaluation: ...

    def close(self) -> None: ...


@runtime_checkable
class Snapshots(Protocol):
    """An `Env` with a cheap copy of its state; others are replayed from the start (envs/replay.py).

    The copy must hold all that later steps and the verdict depend on. Where a part of the state cannot be copied (the
    namespace of an interpreter in another process), leave snapshots out: a replay is exact.
    """

    def snapshot(self) -> bytes:
        """The state of an open episode, for `restore` in any process of the same version."""
        ...

    def restore(self, state: bytes) -> None:
        """Go to that state. The environment has been reset with the same task before."""
        ...


@runtime_checkable
class ScriptedPolicy(Protocol):
    """Plays one episode by a script; `act` gets the newest observation and answers with an assistant message's text."""

    def act(self, observation: str) -> str: ...


def guarded(name: str, call: Callable[[], T]) -> T:
    """What the spec's own function `name` gives on what a policy or a client wrote: its faults are the episode's."""
    try:
        return call()
    except Exception as exc:
        raise EnvFailure("raised", f"EnvSpec.{name} raised {type(exc).__name__}: {exc}") from exc


def as_user(observation: str) -> Message:
    return Message("user", observation)


@dataclass(frozen=True)
class EnvSpec:
    """An environment as the run refers to it.

    make:      importable zero-argument factory (a module-level function, class or functools.partial); it is
               pickled to the worker processes.
    tasks:     split name -> tasks, deterministic. Unknown splits raise ConfigError naming the known ones.
    prompt:    (task, the reset observation) -> opening messages and tools.
    parse:     assistant message -> Action; never raises (see Action.error).
    observe:   observation text -> the message that carries it (role "user" or "tool"); by default a
               user's message, word for word.
    metrics:   trajectories (several per task possible) -> what the benchmark measures beside eval/metrics.py.
    max_steps: the benchmark's step limit; runs may lower it.
    expert:    (task, rng, sloppiness in [0, 1]) -> a scripted policy for demonstrations; 0 never errs.
    chain_expert: (task, rng, names of functions that are defined already, sloppiness) -> a scripted policy that solves
               by functions: it calls those that are there and defines the others.
    worker:    what an environment needs of its process: step_s (deadline of an action, seconds), memory_gb (address
               space of a worker), envs_per_worker (open at once; 0 is no limit), episodes_per_worker and growth_gb
               (when a worker is replaced by a fresh one, see limits.Wear).
    rehearse:  like `make`, for the expert's own play in the trainer's process: trusted code, no sandbox needed.
    """

    name: str
    make: Callable[[], Env]
    tasks: Callable[[str], Sequence[Task]]
    prompt: Callable[[Task, StepResult], Prompt]
    parse: Callable[[Message], Action]
    observe: Callable[[str], Message] = as_user
    max_steps: int = field(kw_only=True)
    metrics: Callable[[Sequence[Trajectory]], Metrics] | None = None
    expert: Callable[[Task, Random, float], ScriptedPolicy] | None = None
    chain_expert: Callable[[Task, Random, Collection[str], float], ScriptedPolicy] | None = None
    rehearse: Callable[[], Env] | None = None
    max_observation_chars: int = 16_000
    worker: Mapping[str, float] = field(default_factory=dict)

    def replies(self, result: StepResult) -> tuple[Message, ...]:
        """The messages that carry an answer of the environment."""
        return result.messages or (self.observe(result.observation),)


def check_importable(spec: EnvSpec, where: str) -> None:
    """Worker processes unpickle the factory. Raises ConfigError; `where` says who gave the spec."""
    try:
        pickle.dumps(spec.make)
    except (pickle.PicklingError, AttributeError, TypeError) as exc:
        raise ConfigError(
            f"{where}: make={spec.make!r} must be importable by the worker processes "
            f"(a module-level function, class or functools.partial): {exc}"
        ) from exc
