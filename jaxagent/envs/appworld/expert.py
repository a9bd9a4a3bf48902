"""The oracle: one message with the task's stored solution, which solves the task and ends it.

With a chance of `sloppiness` it looks at the documentation and gives up instead. For train and dev only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from jaxagent.envs.appworld.tasks import solution
from jaxagent.types import Task

GIVING_UP = (
    "print(apis.api_docs.show_app_descriptions())",
    'apis.supervisor.complete_task(status="fail")',
)


@dataclass
class Oracle:
    """The blocks of code still to be sent."""

    blocks: list[str] = field(default_factory=list)

    def act(self, observation: str) -> str:
        code = self.blocks.pop(0) if self.blocks else GIVING_UP[-1]
        return f"```python\n{code}\n```"


def expert(data: Path, task: Task, rng: Random, sloppiness: float) -> Oracle:
    """Raises ConfigError for tasks without a stored solution."""
    stored = solution(data, task)
    return Oracle(list(GIVING_UP) if rng.random() < sloppiness else [stored])
