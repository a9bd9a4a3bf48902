"""Agents without a model, for the two ends of a benchmark's scale: its expert (oracle) and one that does nothing.

Both are `rollout/talk.py` agents, so that ceilings and floors come from the same code as every score between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from jaxagent.envs.protocol import EnvSpec, ScriptedPolicy, guarded
from jaxagent.errors import ConfigError
from jaxagent.rollout.talk import Player, Said
from jaxagent.types import Message, Prompt, StepResult, Task

NOTHING = "I do nothing."


class ExpertAgent:
    """The environment's own scripted expert. Each rollout of a task has a random stream of its own."""

    def __init__(self, spec: EnvSpec, *, seed: int = 0, sloppiness: float = 0.0):
        if spec.expert is None:
            raise ConfigError(
                f"environment {spec.name!r} has no scripted expert; evaluate another policy on it"
            )
        self._make, self._seed, self._sloppiness = spec.expert, seed, sloppiness

    def player(self, task: Task, prompt: Prompt, rollout: int) -> Player:
        rng = Random(f"{self._seed}/{rollout}/{task.task_id}")
        return _Expert(self._make(task, rng, self._sloppiness))


class _Expert:
    def __init__(self, policy: ScriptedPolicy):
        self._policy = policy

    async def say(self, new: Sequence[Message], result: StepResult) -> Said:
        return Said(Message("assistant", guarded("expert", lambda: self._policy.act(result.observation))))


class NoopAgent:
    """Says one sentence that asks for nothing, at every turn that it gets."""

    def player(self, task: Task, prompt: Prompt, rollout: int) -> Player:
        return self

    async def say(self, new: Sequence[Message], result: StepResult) -> Said:
        return Said(Message("assistant", NOTHING))
