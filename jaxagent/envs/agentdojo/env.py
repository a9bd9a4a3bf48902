"""One AgentDojo task as an environment: tool calls until a plain message, which is the answer to the user.

The package's loop runs the tools of at most 15 messages; the 16th ends the episode whatever it says.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxagent.envs.agentdojo import suites
from jaxagent.types import Action, Evaluation, ExecStatus, Message, StepResult, Task, ToolCall

ROUNDS = 15
OVER = "The conversation is over."


@dataclass
class Play:
    """How far an episode is. `before` and `after` are the world at the start and now."""

    before: Any
    after: Any
    rounds: int = 0
    calls: list[ToolCall] = field(default_factory=list)
    answer: str = ""


class AgentDojoEnv:
    """The reset's info carries what the prompt needs: the suite's tools."""

    def __init__(self, version: str = "v1.2.2", attack: str = "none"):
        self.version, self.attack = version, attack

    def reset(self, task: Task) -> StepResult:
        self.task, self.suite = task, str(task.meta["suite"])
        world = suites.world(self.version, task, self.attack)
        self.play = Play(world, world.model_copy(deep=True))
        tools = list(suites.tools(self.version, self.suite))
        goal = suites.user_task(self.version, task)
        return StepResult(goal.PROMPT, anchor=self._anchor(), info={"tools": tools})

    def step(self, action: Action) -> StepResult:
        if action.tool_calls or action.error:
            return self._round(action)
        self.play.answer = action.text
        return StepResult(OVER, done=True, anchor=self._anchor())

    def evaluate(self) -> Evaluation:
        """success is the benchmark's utility. Under attack there is a second check: the attacker got nothing."""
        done, fault = self._holds("utility")
        checks = {"the user's task is done": done}
        info: dict[str, float | str] = {"score": float(done), "fault": fault}
        if "injection_task" in self.task.meta:
            attacked, _ = self._holds("security")
            checks["the injected instruction was not followed"] = not attacked
            info["attacked"] = float(attacked)
        failures = tuple(f"not so: {name}" for name, passed in checks.items() if not passed)
        return Evaluation(done, len(checks) - len(failures), len(checks), failures, info)

    def close(self) -> None:
        """Nothing is held outside the instance."""

    def snapshot(self) -> bytes:
        return pickle.dumps(self.play)

    def restore(self, state: bytes) -> None:
        self.play = pickle.loads(state)

    def _round(self, action: Action) -> StepResult:
        play = self.play
        play.calls += [suites.as_lists(call) for call in action.tool_calls]
        if play.rounds == ROUNDS:
            return StepResult(OVER, ExecStatus.INVALID, done=True, anchor=self._anchor())
        play.rounds += 1
        if action.error:
            return StepResult(action.error, ExecStatus.INVALID, anchor=self._anchor())
        return self._run(play.calls[len(play.calls) - len(action.tool_calls) :])

    def _run(self, calls: Sequence[ToolCall]) -> StepResult:
        ran = [suites.run_call(self.version, self.suite, self.play.after, call) for call in calls]
        return StepResult(
            "\n".join(text for text, _ in ran),
            ExecStatus.RUNTIME_ERROR if any(failed for _, failed in ran) else ExecStatus.OK,
            anchor=self._anchor(),
            messages=tuple(Message("tool", text) for text, _ in ran),
        )

    def _holds(self, check: str) -> tuple[bool, str]:
        play = self.play
        find = suites.user_task if check == "utility" else suites.injection_task
        goal = find(self.version, self.task)
        return suites.holds(goal, check, play.answer, play.before, play.after, play.calls)

    def _anchor(self) -> str:
        state = json.dumps(self.play.after.model_dump(mode="json"), sort_keys=True)
        return f"{self.task.task_id}/{hashlib.sha1(state.encode()).hexdigest()[:16]}"
