"""The sampled tokens of a trajectory in a row, for credit that is finer than a step.

    segment   p p a a e o o a a         tokens   a a e a a
    step     -1-1 0 0 0-1-1 1 1         step     0 0 0 1 1

What the environment wrote is not among them: values and advantages pass over it unchanged. Steps follow each other,
whichever segments they lie in. All arithmetic on the row is float64; what goes back to the segments is float32, 0
outside the mask. Axis X: these tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float, Int

from jaxagent.errors import RolloutError
from jaxagent.rewards.kl import kl_token_rewards
from jaxagent.rewards.step_rewards import REWARDS, Rewards
from jaxagent.types import Credited, Trajectory


@dataclass(frozen=True, eq=False)
class Tokens:
    """segment_X, place_X: where each token lies. step_X: its step, ascending."""

    trajectory: Trajectory
    segment_X: Int[np.ndarray, "X"]
    place_X: Int[np.ndarray, "X"]
    step_X: Int[np.ndarray, "X"]

    def stream(self, name: str) -> Float[np.ndarray, "X"]:
        """A token stream of the segments."""
        value_X = np.zeros(len(self.step_X))
        for number, segment in enumerate(self.trajectory.segments):
            if name not in segment.logprobs:
                raise RolloutError(
                    f"{self.trajectory.traj_id} has no token stream {name!r}, only {sorted(segment.logprobs)}; name it "
                    "in the stage's `needs`"
                )
            own_X = self.segment_X == number
            value_X[own_X] = segment.logprobs[name][self.place_X[own_X]]
        return value_X

    def back(self, value_X: Float[np.ndarray, "X"]) -> tuple[Float[np.ndarray, "_"], ...]:
        """One array a segment, 0 where no token was sampled."""
        out = tuple(np.zeros(len(segment.ids_T), np.float32) for segment in self.trajectory.segments)
        for number, value_T in enumerate(out):
            own_X = self.segment_X == number
            value_T[self.place_X[own_X]] = value_X[own_X]
        return out

    def turns(self) -> tuple[Int[np.ndarray, "J"], Int[np.ndarray, "J"], Int[np.ndarray, "X"]]:
        """First and last token of each step that has tokens, and for each token the number J of its step among them."""
        _, first_J, turn_X, size_J = np.unique(
            self.step_X, return_index=True, return_inverse=True, return_counts=True
        )
        return first_J, first_J + size_J - 1, turn_X


def sampled(trajectory: Trajectory) -> Tokens:
    """Token 0 of a segment is never scored and never counts."""
    places, steps = [], []
    for segment in trajectory.segments:
        scored_T = segment.scored_T
        places.append(np.flatnonzero(scored_T))
        steps.append(np.asarray(segment.step_T, np.int64)[scored_T])
    none = np.zeros(0, np.int64)
    step_X = np.concatenate([none, *steps])
    order_X = np.argsort(step_X, kind="stable")
    number_X = np.repeat(np.arange(len(places)), [len(place) for place in places])
    return Tokens(trajectory, number_X[order_X], np.concatenate([none, *places])[order_X], step_X[order_X])


def token_rewards(tokens: Tokens, rewards: Rewards, *, kl_coef: float = 0.0) -> Float[np.ndarray, "X"]:
    """Each step's reward at its last token, minus kl_coef (old - reference) at every one.

    The return of an episode is so paid at its last action token. A step without a token hands its reward to the token
    before it.
    """
    trajectory, count = tokens.trajectory, len(tokens.step_X)
    reward_K = REWARDS[rewards](trajectory)
    if not np.isfinite(reward_K).all():
        raise RolloutError(f"trajectory {trajectory.traj_id!r} has a reward that is not finite: {reward_K}")
    last_K = np.searchsorted(tokens.step_X, np.arange(len(reward_K)), side="right") - 1
    reward_X = np.zeros(count)
    if count:
        np.add.at(reward_X, np.maximum(last_K, 0), reward_K)
    if kl_coef:
        every_X = np.ones(count, bool)
        reward_X += kl_token_rewards(tokens.stream("old"), tokens.stream("reference"), every_X, beta=kl_coef)
    return reward_X


def bootstrap_value(trajectory: Trajectory) -> float:
    """Value of the state after the last token of an episode that its budget cut; 0 if it ended by itself."""
    if not trajectory.segments:
        return 0.0
    last = trajectory.segments[-1].logprobs
    if "bootstrap" not in last:
        raise RolloutError(
            f'{trajectory.traj_id} has no token stream "bootstrap"; name it in the stage\'s `needs`'
        )
    return float(last["bootstrap"][-1])


@dataclass(frozen=True, eq=False)
class Estimated:
    """Advantages of a trajectory's tokens, and what their values should have been. measured: see `Credited`."""

    tokens: Tokens
    advantage_X: Float[np.ndarray, "X"]
    return_X: Float[np.ndarray, "X"]
    measured: Mapping[str, float] = field(default_factory=dict)

    def credited(self) -> Credited:
        """The trajectory with the value targets as token stream "return"."""
        trajectory, tokens = self.tokens.trajectory, self.tokens
        segments = tuple(
            replace(segment, logprobs={**segment.logprobs, "return": return_T})
            for segment, return_T in zip(trajectory.segments, tokens.back(self.return_X), strict=True)
        )
        size_K = np.bincount(tokens.step_X, minlength=len(trajectory.steps))
        total_K = np.bincount(tokens.step_X, self.advantage_X, minlength=len(trajectory.steps))
        return Credited(
            replace(trajectory, segments=segments),
            (total_K / np.maximum(size_K, 1)).astype(np.float32),
            tokens.back(self.advantage_X),
            dict(self.measured),
        )


def concatenated(parts: Sequence[Estimated]) -> Float[np.ndarray, "X"]:
    """The advantages of all of them."""
    return np.concatenate([np.zeros(0), *(part.advantage_X for part in parts)])
