"""Attribution: a judge says which steps were good, and that is fused with the outcome (AgentEvolver, arXiv 2511.10395).

In: labels GOOD (+1) or BAD (-1) for every step of a group, and returns. Out: one advantage a step.

    attr[i,k] = (label[i,k] - mu) / sigma              mu, sigma of the group, every trajectory weighs the same
    out[i]    = (R_i - mean) / (std + 1e-8)            population std; 0 without variance
    step[i,k] = alpha attr[i,k] + beta out[i] at the last step
    A[i,k]    = sum over j >= k of step[i,j]           the sum comes after the fusion

    labels GB, GGB   R 1, 0   alpha .1:   attr [.845, -1.183], [.845, .845, -1.183]
                                          A    [.966, .882], [-.949, -1.034, -1.118]

sigma is the root of the mean squared distance from mu, as in the released code. The paper's, the spread of the
trajectories' means, explodes where these are close ("traj_mean_std"; there .167 instead of .986). With alpha 0 this is
the outcome's z-score for every step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from jaxagent.credit.group import returns, survivors, zero_variance
from jaxagent.errors import ConfigError
from jaxagent.rewards.step_rewards import discounted
from jaxagent.types import Credited, Group, Metrics, Trajectory

Sigma = Literal["traj_equal_step", "traj_mean_std"]
Distribution = Literal["last_step", "all_steps"]
Skip = Literal["none", "no_advantage", "failed"]
StepLabels = Float[np.ndarray, "_"]
SMALL = 1e-6


@dataclass(frozen=True)
class Labelled:
    """labels: +1 and -1, one array [K] a trajectory. failed: which of them the judge could not give."""

    labels: tuple[StepLabels, ...]
    failed: tuple[bool, ...]


@runtime_checkable
class Labeller(Protocol):
    """Labels every step of these trajectories."""

    def __call__(self, trajectories: Sequence[Trajectory]) -> Labelled: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Fusion:
    """orm_distribution: the outcome's part at the last step, or whole at every one (the early ones then hold K of it).

    inconsistent: factor of labels that contradict the outcome (BAD in a success, GOOD in a failure); the code's
                  allocation scheme has 0.2.
    sqrt_length:  divide the step rewards of a trajectory by the root of its steps.
    skip:         "no_advantage" asks about no trajectory whose outcome's advantage is 0, "failed" about none that
                  failed; their labels stay out of mu and sigma, their steps have the outcome's part alone.
    """

    beta: float = 1.0
    sigma: Sigma = "traj_equal_step"
    orm_distribution: Distribution = "last_step"
    inconsistent: float = 1.0
    sqrt_length: bool = False
    skip: Skip = "none"

    def __post_init__(self) -> None:
        if self.beta < 0 or not 0 <= self.inconsistent <= 1:
            raise ConfigError(
                f"attribution: beta={self.beta}, inconsistent={self.inconsistent}; expected beta >= 0 and a factor "
                "from 0 to 1"
            )


class Attribution:
    """`Credit` by both channels. Owns the labeller; `close` ends it.

    alpha: asked once an iteration, so that it can decay; at 0 no judge is asked.

    Logs attribution/*: the share of GOOD labels, judge failures, mu, sigma, the mean size of both parts, the
    correlation of an episode's mean label with its return, and the seconds that the labels took.
    """

    def __init__(self, label: Labeller, alpha: Callable[[], float], fusion: Fusion | None = None):
        self.label, self.alpha, self.fusion = label, alpha, fusion or Fusion()

    def __call__(self, groups: Sequence[Group]) -> list[Credited]:
        alive = [members for group in groups if (members := survivors(group))]
        outcomes = [outcome_channel(returns(members)) for members in alive]
        alpha = self.alpha()
        asked = [
            [alpha > 0 and _worth_asking(t, out, self.fusion.skip) for t, out in zip(members, out_G)]
            for members, out_G in zip(alive, outcomes)
        ]
        start = time.perf_counter()
        labels_K, measured = _labels(self.label, alive, asked)
        measured |= {"attribution/seconds": time.perf_counter() - start, "attribution/alpha": alpha}
        return [
            replace(item, measured={**measured, **item.measured})
            for members, out_G, labels in zip(alive, outcomes, labels_K)
            for item in self._group(members, out_G, labels, alpha)
        ]

    def close(self) -> None:
        self.label.close()

    def _group(
        self,
        members: Sequence[Trajectory],
        out_G: Float[np.ndarray, "G"],
        labels_K: Sequence[StepLabels | None],
        alpha: float,
    ) -> Iterator[Credited]:
        held = [
            _allocated(t, labels, self.fusion) for t, labels in zip(members, labels_K) if labels is not None
        ]
        standardised, measured = attribution_channel(held, sigma=self.fusion.sigma)
        attr_K = iter(standardised)
        for trajectory, out, labels in zip(members, self.fusion.beta * out_G, labels_K):
            part_K = np.zeros(len(trajectory.steps)) if labels is None else alpha * next(attr_K)
            sizes = {
                "attribution/attr_abs": float(np.abs(part_K).sum()),
                "attribution/out_abs": abs(float(out)),
            }
            advantage_K = discounted(fused(part_K, float(out), self.fusion), 1.0).astype(np.float32)
            yield Credited(trajectory, advantage_K, measured={**measured, **sizes})


def cosine_alpha(alpha: float, iteration: int, total: int) -> float:
    """alpha/2 (1 + cos(pi t/T)): .1 over 40 iterations is .1, .0854 (t = 10), .05, 0 (t = 40)."""
    return 0.5 * alpha * (1 + math.cos(math.pi * min(iteration, total) / total))


def attribution_channel(
    labels_K: Sequence[StepLabels], *, sigma: Sigma = "traj_equal_step"
) -> tuple[list[Float[np.ndarray, "_"]], Metrics]:
    """Standardised labels of a group. Every trajectory weighs the same, however long; one without a step has none."""
    held = [labels for labels in labels_K if labels.size]
    if not held:
        return list(labels_K), {}
    mean_G = np.array([labels.mean() for labels in held])
    mu = mean_G.mean()
    if sigma == "traj_mean_std":
        spread = float(mean_G.std())
        scale = spread if spread > SMALL else 1.0  # a spread of 0 leaves the labels centred, not infinite
    else:
        spread = scale = float(np.sqrt(np.mean([((labels - mu) ** 2).mean() for labels in held]) + 1e-8))
    measured = {"attribution/mu": float(mu), "attribution/sigma": spread}
    return [(labels - mu) / scale for labels in labels_K], measured


def outcome_channel(reward_G: Float[np.ndarray, "G"]) -> Float[np.ndarray, "G"]:
    """Population z-score of the returns; 0 without variance."""
    if zero_variance(reward_G):
        return np.zeros_like(reward_G)
    return (reward_G - reward_G.mean()) / (reward_G.std() + 1e-8)


def fused(part_K: Float[np.ndarray, "K"], out: float, fusion: Fusion) -> Float[np.ndarray, "K"]:
    """Both channels as step rewards."""
    reward_K = part_K.copy()
    if fusion.orm_distribution == "all_steps":
        reward_K += out
    else:
        reward_K[-1:] += out
    return reward_K / math.sqrt(reward_K.size) if fusion.sqrt_length and reward_K.size else reward_K


def outcome_labels(trajectory: Trajectory) -> StepLabels:
    """What stands in for labels that no judge gave: all GOOD in a success, all BAD in a failure."""
    return np.full(len(trajectory.steps), 1.0 if trajectory.success else -1.0)


def _worth_asking(trajectory: Trajectory, out: float, skip: Skip) -> bool:
    if skip == "no_advantage":
        return bool(abs(out) > SMALL)
    return skip == "none" or trajectory.success


def _labels(
    label: Labeller, alive: Sequence[Sequence[Trajectory]], asked: Sequence[Sequence[bool]]
) -> tuple[list[list[StepLabels | None]], Metrics]:
    """Labels of all groups, asked for at once; None where nobody was asked."""
    chosen = [t for members, flags in zip(alive, asked) for t, flag in zip(members, flags) if flag]
    measured: Metrics = {"attribution/asked": float(len(chosen))}
    if not chosen:
        return [[None] * len(members) for members in alive], measured
    found = label(chosen)
    measured["attribution/failures"] = float(sum(found.failed))
    every = np.concatenate(found.labels)
    if every.size:
        measured["attribution/good_frac"] = float((every > 0).mean())
    measured |= _correlation(chosen, found.labels)
    given = iter(found.labels)
    return [[next(given) if flag else None for flag in flags] for flags in asked], measured


def _correlation(trajectories: Sequence[Trajectory], labels_K: Sequence[StepLabels]) -> Metrics:
    """Of mean label and return, over episodes; left out where one of them does not vary."""
    pairs = [(labels.mean(), t.reward) for t, labels in zip(trajectories, labels_K) if labels.size]
    label_N, reward_N = np.array(pairs).reshape(-1, 2).T
    if zero_variance(label_N) or zero_variance(reward_N):
        return {}
    return {"attribution/label_return_corr": float(np.corrcoef(label_N, reward_N)[0, 1])}


def _allocated(trajectory: Trajectory, labels: StepLabels, fusion: Fusion) -> StepLabels:
    """Labels with those that contradict the outcome weakened."""
    agrees = (labels > 0) == trajectory.success
    return labels * np.where(agrees, 1.0, fusion.inconsistent)
