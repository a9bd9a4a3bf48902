"""One episode of AppWorld in our worker process: code goes to a world, its official text comes back.

The verdict is made in a process that never ran the agent's code, once, from what the world saved. It has no cheap
snapshot (AppWorld's `load_state` is not allowed in comparable results): it is rebuilt and replayed.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxagent.envs.appworld.outputs import Place, take
from jaxagent.envs.appworld.server import Fork, Installation, Server, current_server
from jaxagent.envs.channel import ChildGone
from jaxagent.errors import EnvFailure
from jaxagent.types import Action, Evaluation, ExecStatus, StepResult, Task

GRACE_S = 10.0  # beyond AppWorld's own time-out, before a world is killed
_numbers = itertools.count()


@dataclass(frozen=True)
class Settings:
    """How a worker opens worlds. experiment: name under which outputs are kept; "" throws them away.

    answer_s: deadline of an opening and of a verdict; by default below those of envs/pool.py, so that one slow
              world does not cost the worker.
    raises:   whether a refused API call raises in the agent's code, as it does for every agent; the stored solutions
              were written for calls that return the refusal.
    """

    installation: Installation
    experiment: str = ""
    max_interactions: int = 1000
    timeout_s: int = 100
    seed: int = 100
    memory_gb: float = 2.0
    answer_s: float = 50.0
    raises: bool = True


class AppWorldEnv:
    """Owner of one world and of its outputs."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._fork: Fork | None = None
        self._place: Place | None = None
        self._judged = False

    def reset(self, task: Task) -> StepResult:
        settings, self._task = self._settings, task
        self._server = current_server(settings.installation)
        self._place = self._take(self._server)
        request = {
            "task_id": task.task_id,
            "experiment": self._place.experiment,
            "max_interactions": settings.max_interactions,
            "timeout_s": settings.timeout_s,
            "seed": settings.seed,
            "memory_gb": settings.memory_gb,
            "raises": settings.raises,
        }
        self._fork = self._server.fork(settings.answer_s)
        opening = _asked(self._fork, {"world": request}, settings.answer_s)
        self._completed, self._interactions = False, 0
        instruction = _typed(opening, "instruction", str)
        told = {name: _typed(opening, name, kind) for name, kind in _OPENING.items()}
        self._state = _typed(opening, "state", str)
        return StepResult(instruction, anchor=f"{self._state}\n{instruction}", info=told)

    def step(self, action: Action) -> StepResult:
        if action.error:
            return self._answer(action.error, ExecStatus.INVALID)
        if self._fork is None:
            return self._answer("The world has ended.", ExecStatus.RUNTIME_ERROR, done=True)
        try:
            answer = self._fork.ask({"execute": action.text}, self._settings.timeout_s + GRACE_S)
        except ChildGone as gone:
            return self._lost(gone)
        self._interactions = _typed(answer, "interactions", int)
        self._completed = _typed(answer, "completed", bool)
        self._state = _typed(answer, "state", str)
        status = _typed(answer, "status", str)
        if status not in {known.value for known in ExecStatus}:
            raise EnvFailure("garbage", f"unknown status {status!r} from AppWorld")
        done = self._completed or _typed(answer, "exhausted", bool)
        return self._answer(_typed(answer, "output", str), ExecStatus(status), done=done)

    def evaluate(self) -> Evaluation:
        assert self._place is not None
        judge = self._server.fork(self._settings.answer_s)
        try:
            message = {"evaluate": {"task_id": self._task.task_id, "experiment": self._place.experiment}}
            verdict = _asked(judge, message, self._settings.answer_s)
        finally:
            judge.kill()
        self._judged = True
        passed, total = _typed(verdict, "passed", int), _typed(verdict, "total", int)
        info = {
            "score": passed / max(total, 1),
            "completed": self._completed,
            "interactions": self._interactions,
        }
        failures = tuple(str(failure) for failure in _typed(verdict, "failures", list))
        return Evaluation(_typed(verdict, "success", bool), passed, total, failures, info)

    def close(self) -> None:
        if self._fork is not None:
            self._fork.kill()
            self._fork = None
        if self._place is not None and not (self._judged and self._settings.experiment):
            self._place.discard()
        self._place = None

    def _take(self, server: Server) -> Place:
        """A name for the outputs that no other rollout has."""
        if self._settings.experiment:
            return take(server.root, self._settings.experiment, self._task.task_id)
        return Place(server.root, f"episodes/{os.getpid()}-{next(_numbers)}", self._task.task_id)

    def _lost(self, gone: ChildGone) -> StepResult:
        """The agent's code cost the world its process: that is the agent's doing, and the episode ends as saved."""
        self._fork = None
        if not self._server.alive:
            raise EnvFailure("died", f"AppWorld's server is gone, and the world with it: {gone}") from gone
        if gone.kind == "hung":
            why = f"Execution timed out after {self._settings.timeout_s} seconds."
            return self._answer(f"Execution failed. Traceback:\n{why}", ExecStatus.TIMEOUT, done=True)
        why = f"The code ended the world's process ({gone})."
        return self._answer(f"Execution failed. Traceback:\n{why}", ExecStatus.RUNTIME_ERROR, done=True)

    def _answer(self, text: str, status: ExecStatus, *, done: bool = False) -> StepResult:
        info = {"interactions": self._interactions, "completed": self._completed}
        return StepResult(text, status, done=done, anchor=f"{self._state}\n{text}", info=info)


_OPENING: Mapping[str, type] = {"supervisor": dict, "datetime": str, "apps": dict, "walls": list}


def _asked(fork: Fork, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """An exchange in which no agent has a part: a lost process is the environment's fault."""
    try:
        return fork.ask(message, seconds)
    except ChildGone as gone:
        kind = {"hung": "hang", "forged": "garbage"}.get(gone.kind, "died")
        raise EnvFailure(kind, f"AppWorld's process: {gone}") from gone


def _typed(answer: Mapping[str, Any], name: str, kind: type) -> Any:
    value = answer.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise EnvFailure("garbage", f"{name} is {type(value).__name__} in AppWorld's answer")
    return value
