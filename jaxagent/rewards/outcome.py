"""The return of an episode from the environment's verdict. In: an evaluated `Trajectory`. Out: R, in [0, 1].

`success` stays the raw verdict; credit uses R. Episodes that were cancelled or whose environment failed
have no return: they are dropped before rewards, and asking for one is an error, never a 0.
"""

from __future__ import annotations

from collections.abc import Collection

from jaxagent.errors import RolloutError
from jaxagent.stage import Reward
from jaxagent.types import Evaluation, Status, Trajectory


def verdict(trajectory: Trajectory) -> Evaluation:
    """The evaluation of an episode that may have a return; RolloutError otherwise."""
    if trajectory.status.dropped:
        raise RolloutError(
            f"{trajectory.traj_id} ended {trajectory.status}: it has no return; drop it before rewards"
        )
    if trajectory.evaluation is None:
        raise RolloutError(f"{trajectory.traj_id} ended {trajectory.status} without an evaluation")
    return trajectory.evaluation


def test_fraction(trajectory: Trajectory) -> float:
    """Unit tests passed of all."""
    evaluation = verdict(trajectory)
    if evaluation.total < 1:
        raise RolloutError(
            f"{trajectory.traj_id}: the environment reports {evaluation.total} tests; it must report 1 or "
            "more, or the run must use the success reward"
        )
    return evaluation.passed / evaluation.total


def success(trajectory: Trajectory) -> float:
    """1 if the task is solved, else 0 (the sparse reward)."""
    return float(verdict(trajectory).success)


def score(trajectory: Trajectory) -> float:
    """The benchmark's own graded score, `Evaluation.info["score"]`, e.g. WebShop's or ScienceWorld's in [0, 1]."""
    info = verdict(trajectory).info
    if not isinstance(info.get("score"), (int, float)):
        raise RolloutError(
            f"{trajectory.traj_id}: the environment gives no score (its verdict holds {sorted(info)}); use the "
            "success or the test_fraction reward"
        )
    return float(info["score"])


def zero_on(reward: Reward, statuses: Collection[Status]) -> Reward:
    """`reward`, but 0 for episodes that ended so, e.g. {STEP_LIMIT} as in LOOP's paper.

    Without it the final state of a cut episode is evaluated as usual.
    """

    def zeroed(trajectory: Trajectory) -> float:
        value = reward(trajectory)
        return 0.0 if trajectory.status in statuses else value

    return zeroed
