"""What is asked of the rollouts: how often a task is played, how it opens, where it branches off, who samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxagent.errors import ConfigError
from jaxagent.types import Action, Prompt, Task, Trajectory


@dataclass(frozen=True, eq=False)
class Branch:
    """A place in a stored trajectory: before its message `step`, from which other continuations are sampled.

    trained: whether the earlier steps belong to each continuation too, with their mask and log-probs as stored. If not,
             they are context: mask 0, and not among its steps.
    """

    trajectory: Trajectory
    step: int
    trained: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.step < len(self.trajectory.steps):
            raise ConfigError(
                f"a branch before step {self.step} of {self.trajectory.traj_id!r}, which has "
                f"{len(self.trajectory.steps)} steps; expected 0 to {len(self.trajectory.steps) - 1}"
            )


@dataclass(frozen=True)
class Plan:
    """Ask for `n` rollouts of one task.

    Two plans of a task under different labels are paired: rollout i of both draws from the same random stream, e.g.
    with and without a skill in the prompt. A plan with a `branch` asks for n continuations from there; its streams are
    those of that place.

    weights:  whose parameters sample: the policy's, or others that the stage keeps ("reference"). The groups of the
              latter come last, and their trajectories say so in `extra["weights"]`.
    group:    plans of one task and one non-empty name give one group, in the order of the plans: their returns share a
              baseline. Without a name every plan is a group of its own.
    position: place in a chain of tasks, 0 for the first; it is that of the group.
    before:   the opening as the environment gives it -> actions that are played after the reset and before the policy's
              first message. Nothing of them is shown; `Trajectory.before` keeps them.
    first:    number of the first rollout, which names random streams. None goes on after the earlier plans of the task
              under this label.
    """

    task: Task
    n: int
    prompt: Callable[[Any], Any] | None = None  # Prompt -> Prompt, e.g. skill injection
    label: str = ""
    branch: Branch | None = None
    weights: str = "current"
    group: str = ""
    position: int = 0
    before: Callable[[Prompt], Sequence[Action]] | None = None
    first: int | None = None

    def __post_init__(self) -> None:
        if self.branch is None:
            return
        if self.branch.trajectory.task.task_id != self.task.task_id:
            raise ConfigError(
                f"a plan of task {self.task.task_id!r} branches off an episode of "
                f"{self.branch.trajectory.task.task_id!r}"
            )
        if self.prompt is not None:
            raise ConfigError("a branch goes on under the prompt of its trajectory; drop the plan's `prompt`")
        if self.before is not None:
            raise ConfigError(
                "a branch repeats what was played before its trajectory; drop the plan's `before`"
            )
