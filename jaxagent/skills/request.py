"""What a task asks, in words, before its episode opens: retrieval of skills goes by it.

An environment that may be opened in this process (it has an expert) is asked; of any other, what its earlier episodes
showed is remembered, and a task that was never played asks nothing yet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from jaxagent.envs.protocol import EnvSpec
from jaxagent.rollout.review import plain_prompt
from jaxagent.types import Prompt, Task, Trajectory

Asked = Callable[[Prompt], str]
"""What an opening asks for."""


def request_of(prompt: Prompt) -> str:
    """The last user message of an opening; "" without one."""
    return next((message.content for message in reversed(prompt.messages) if message.role == "user"), "")


def request_in(pattern: str) -> Asked:
    """The first group of a pattern in the last user message: the task without the room it is set in.

    "Your task is to: (.*)" finds "put a mug in desk." The whole message where it finds nothing.
    """
    found_in = re.compile(pattern)

    def asked(prompt: Prompt) -> str:
        text = request_of(prompt)
        found = found_in.search(text)
        return found[1] if found else text

    return asked


class Requests:
    """Remembers what was asked. Only what cannot be asked again is state."""

    def __init__(self, spec: EnvSpec, asked: Asked = request_of):
        self.spec, self.asked = spec, asked
        self._known: dict[str, str] = {}

    def of(self, task: Task) -> str:
        if task.task_id not in self._known and self._opens:
            self._known[task.task_id] = self.asked(self._open(task))
        return self._known.get(task.task_id, "")

    def learn(self, trajectory: Trajectory) -> None:
        self._known[trajectory.task.task_id] = self.asked(plain_prompt(trajectory))

    def state(self) -> Mapping[str, str]:
        return {} if self._opens else dict(self._known)

    def restore(self, state: Mapping[str, str]) -> None:
        self._known = dict(state)

    @property
    def _opens(self) -> bool:
        return self.spec.expert is not None

    def _open(self, task: Task) -> Prompt:
        env = (self.spec.rehearse or self.spec.make)()
        try:
            return self.spec.prompt(task, env.reset(task))
        finally:
            env.close()
