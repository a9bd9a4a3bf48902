"""Episodes that go on from the middle of a stored trajectory: the same tokens, the same state, another continuation.

In: a `Branch` (stage.py). Out: the environment's prefix (replayed and compared, envs/replay.py), the token history
up to the branching message, and a random stream of its own. Nothing is rendered again: the history is the stored ids.

    stored     p p p  a a e  o o o  b b e  o o o  c c e
    step      -1-1-1  0 0 0 -1-1-1  1 1 1 -1-1-1  2 2 2
    Branch(step=1), trained=False:  p p p  a a e  o o o | x x e …    trained=True
    mask       0 0 0  0 0 0  0 0 0   1 1 1                0 0 0  1 1 1  0 0 0   1 1 1
    step      -1-1-1 -1-1-1 -1-1-1   0 0 0               -1-1-1  0 0 0 -1-1-1   1 1 1
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from jaxagent.envs.replay import Prefix
from jaxagent.errors import RolloutError
from jaxagent.rollout.context import History
from jaxagent.rollout.explore import FORCED
from jaxagent.stage import Branch
from jaxagent.types import Completion, Segment, Step, StepResult


def branch_name(branch: Branch) -> str:
    """Names the place: part of the branches' trajectory ids, and of their random streams."""
    return f"{branch.trajectory.traj_id}/{branch.step}"


def kept_steps(branch: Branch) -> tuple[Step, ...]:
    """The steps before the place that belong to the new trajectory as well."""
    return branch.trajectory.steps[: branch.step] if branch.trained else ()


def prefix_of(branch: Branch, characters: int) -> Prefix:
    """What the environment did up to the place. characters: at which length the run cuts observations."""
    steps = branch.trajectory.steps
    before = steps[: branch.step]
    results = [StepResult(steps[0].observation_before, anchor=steps[0].anchor)]
    results += [result for _, result in branch.trajectory.before]
    for step, after in zip(before, steps[1:], strict=False):
        results.append(
            StepResult(step.observation_after, step.exec_status, reward=step.reward, anchor=after.anchor)
        )
    actions = [action for action, _ in branch.trajectory.before] + [step.action for step in before]
    return Prefix(tuple(actions), tuple(results), characters=characters)


def extend_to(branch: Branch, history: History) -> None:
    """Fill an empty history with all that the policy had seen when it wrote the branching message."""
    if branch.step in branch.trajectory.extra.get(FORCED, ()):
        raise RolloutError(
            f"message {branch.step} of {branch.trajectory.traj_id!r} was made to begin with a tool, and its "
            "continuations would begin behind that; branch off another step"
        )
    segment, end = _place(branch)
    if not branch.trained:
        history.extend(segment.ids_T[:end].tolist())
        return
    owner_T = segment.step_T[:end]
    if set(np.unique(owner_T[owner_T >= 0]).tolist()) != set(range(branch.step)):
        raise RolloutError(
            f"the steps before step {branch.step} of {branch.trajectory.traj_id!r} are in several segments; "
            "branch with trained=False"
        )
    edges = [0, *(np.flatnonzero(np.diff(owner_T)) + 1).tolist(), end]
    for start, stop in pairwise(edges):
        _append(branch, history, segment, start, stop)


def _append(branch: Branch, history: History, segment: Segment, start: int, stop: int) -> None:
    """One run of tokens of the same owner."""
    ids_T, owner = segment.ids_T[start:stop], int(segment.step_T[start])
    if owner < 0:
        history.extend(ids_T.tolist())
        return
    step, logprob_T = branch.trajectory.steps[owner], segment.logprobs["behaviour"][start:stop]
    history.sampled(Completion(ids_T, logprob_T, step.stop, step.version), owner)


def _place(branch: Branch) -> tuple[Segment, int]:
    """The segment that holds the branching message, and the index of its first token."""
    for segment in branch.trajectory.segments:
        found = np.flatnonzero(segment.step_T == branch.step)
        if len(found):
            return segment, int(found[0])
    raise RolloutError(f"no segment of {branch.trajectory.traj_id!r} holds step {branch.step}")
