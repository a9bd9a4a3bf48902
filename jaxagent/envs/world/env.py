"""The environment: one world, one goal, the agent's code in a sandbox, the verdict at the end.

State and evaluator live in this process; the sandbox sees API answers only. An episode is done once
`complete_task` (`me.done` at the easy level) was called. There are no snapshots: the agent's variables live in the
sandbox's interpreter, which is forked, confined and cannot be copied; an episode is replayed (envs/replay.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Protocol

from jaxagent.envs.sandbox import ApiError, Sandbox, SandboxLimits, SandboxResult
from jaxagent.envs.world.engine import Tables, World, copy_tables
from jaxagent.envs.world.goal import Goal, differences, evaluate
from jaxagent.envs.world.tasks import LEVELS, build
from jaxagent.types import Action, Evaluation, ExecStatus, StepResult, Task

SHORT = SandboxLimits(short_errors=True, output_chars=400, wall_s=5.0, cpu_s=2.0)
FULL = SandboxLimits()
NO_CODE = "No code available to execute."


class CodeRunner(Protocol):
    """What the environment needs of a sandbox (envs/sandbox.py, inline.py)."""

    def run(self, code: str) -> SandboxResult: ...

    def close(self) -> None: ...


class WorldEnv:
    """One episode of one task of the embedded world (envs/protocol.Env)."""

    def __init__(self, sandbox: Callable[..., CodeRunner] = Sandbox):
        self._sandbox = sandbox
        self._runner: CodeRunner | None = None
        self._world: World | None = None
        self._goal: Goal | None = None
        self._start: Tables = {}
        self._brief = False

    def reset(self, task: Task) -> StepResult:
        self._world, self._goal = build(task)
        self._start = copy_tables(self._world.tables)
        self._brief = task.env == LEVELS["easy"]
        self._runner = self._sandbox(self._call, limits=SHORT if self._brief else FULL)
        return StepResult(self._goal.instruction, anchor=self._anchor(), info=dict(self._world.opening))

    def step(self, action: Action) -> StepResult:
        if self._runner is None or self._world is None:
            raise RuntimeError("step before reset")
        if action.error or not action.text.strip():
            error = "no code" if self._brief else action.error or NO_CODE
            return StepResult(error, ExecStatus.INVALID, done=self._world.completed, anchor=self._anchor())
        result = self._runner.run(action.text)
        observation = result.output.rstrip("\n")
        return StepResult(observation, result.exec_status, done=self._world.completed, anchor=self._anchor())

    def evaluate(self) -> Evaluation:
        if self._world is None or self._goal is None:
            raise RuntimeError("evaluate before reset")
        return evaluate(self._goal, self._start, self._world)

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _call(self, app: str, api: str, arguments: dict[str, Any]) -> object:
        assert self._world is not None
        try:
            return self._world.call(app, api, arguments)
        except ApiError:
            raise
        except Exception as error:
            # A crash would drop the episode from its group: a way for an agent to dodge a bad verdict.
            raise ApiError(500, f"Internal error: {type(error).__name__}") from error

    def _anchor(self) -> str:
        """Equal for episodes of a task whose worlds are in the same state."""
        assert self._world is not None
        state = (
            differences(self._start, self._world.tables),
            sorted(self._world.tokens),
            self._world.completed,
        )
        return hashlib.sha256(repr(state).encode()).hexdigest()[:16]
