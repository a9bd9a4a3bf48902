"""Advantages over the whole batch: REINFORCE with a baseline, and REINFORCE++ (2501.03262).

In: groups. Out: a `Credited` a survivor. REINFORCE credits steps; REINFORCE++ credits trajectories, or tokens where KL
in the reward or a discount makes their returns differ.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int

from jaxagent.credit.group import returns, survivors
from jaxagent.errors import ConfigError
from jaxagent.rewards.kl import kl_penalty
from jaxagent.rewards.step_rewards import StepRewards, discounted, outcome_rewards
from jaxagent.stage import Credit
from jaxagent.types import Credited, Group, Task, Trajectory

Baseline = Callable[[Float[np.ndarray, "N"]], float]
"""Returns of the batch's survivors -> b."""

Scope = Callable[[Task], Hashable]
"""What is whitened together: the trajectories whose tasks have the same value."""


def batch_mean(reward_N: Float[np.ndarray, "N"]) -> float:
    return float(reward_N.mean()) if reward_N.size else 0.0


def constant(b: float) -> Baseline:
    return lambda reward_N: b


def reinforce(
    *, baseline: Baseline = batch_mean, gamma: float = 1.0, rewards: StepRewards = outcome_rewards
) -> Credit:
    """A[i,k] = sum over j >= k of gamma^(j-k) r[i,j] - b. With gamma 1 and R as the last reward that is R - b.

    What the baseline is of are the sums of the same rewards.
    """
    if not 0 <= gamma <= 1:
        raise ConfigError(f"reinforce(gamma={gamma}): expected a discount in [0, 1]")

    def credit(groups: Sequence[Group]) -> list[Credited]:
        alive = [trajectory for group in groups for trajectory in survivors(group)]
        b = baseline(totals(alive, rewards))
        return [Credited(t, (discounted(rewards(t), gamma) - b).astype(np.float32)) for t in alive]

    return credit


def totals(trajectories: Sequence[Trajectory], rewards: StepRewards) -> Float[np.ndarray, "N"]:
    """What each episode was paid in all; one without a step its return, as in any baseline."""
    return returns([replace(t, reward=float(rewards(t).sum())) if t.steps else t for t in trajectories])


# --- REINFORCE++ -------------------------------------------------------------------------------------------


def whole_batch(task: Task) -> Hashable:
    return None


def domain(task: Task) -> Hashable:
    """`meta["domain"]`, else the environment: the rewards of one domain have one scale."""
    return task.meta.get("domain", task.env)


def reinforce_pp(*, group_baseline: bool = False, scope: Scope = whole_batch, eps: float = 1e-8) -> Credit:
    """A = (x - mu) / sqrt(var + eps), mu and Bessel-corrected var over all trained tokens of the batch (of a scope).

    x is the return, or with `group_baseline` the return minus its group's mean. Long trajectories weigh more
    in mu: that is the token-level definition. Lengths 2 and 4, R = 1 and 0: mu 1/3, var .26667,
    A = [1.29099, -.64550].
    """

    def credit(groups: Sequence[Group]) -> list[Credited]:
        alive, values = [], []
        for group in groups:
            members = survivors(group)
            reward_G = returns(members)
            alive += members
            values += list(reward_G - reward_G.mean() if group_baseline and members else reward_G)
        token_N = [np.array([sum(map(len, _trained(t)))]) for t in alive]
        whitened = _by_scope(alive, [np.array([value]) for value in values], token_N, scope, eps)
        return [
            Credited(t, np.full(len(t.steps), value_1[0], np.float32)) for t, value_1 in zip(alive, whitened)
        ]

    return credit


def reinforce_pp_tokens(
    *, kl_coef: float = 0.0, gamma: float = 1.0, scope: Scope = whole_batch, eps: float = 1e-8
) -> Credit:
    """The same with x_t = sum over t' >= t of gamma^(t'-t) r_t': -kl_coef k1 on every sampled token, R on the last."""
    if not 0 <= gamma <= 1 or kl_coef < 0:
        raise ConfigError(f"reinforce_pp_tokens(gamma={gamma}, kl_coef={kl_coef}): expected [0, 1] and >= 0")

    def credit(groups: Sequence[Group]) -> list[Credited]:
        alive = [trajectory for group in groups for trajectory in survivors(group)]
        returns(alive)  # each is finite
        values = [token_returns(t, gamma=gamma, kl_coef=kl_coef) for t in alive]
        whitened = _by_scope(alive, values, [np.ones(v.shape, np.int64) for v in values], scope, eps)
        return [_per_token(t, value_X) for t, value_X in zip(alive, whitened)]

    return credit


def token_returns(trajectory: Trajectory, *, gamma: float, kl_coef: float) -> Float[np.ndarray, "X"]:
    """x of the trained tokens, in the order of the segments. beta .1, k1 .1, -.05, .2 and R 1 -> .975, .985, .98."""
    rewards = [np.zeros(0)]
    for segment, tokens in zip(trajectory.segments, _trained(trajectory)):
        penalty_T = kl_penalty(segment, beta=kl_coef) if kl_coef else np.zeros(segment.ids_T.shape)
        rewards.append(penalty_T[tokens].astype(np.float64))
    reward_X = np.concatenate(rewards)
    if not reward_X.size:
        return reward_X
    reward_X[-1] += trajectory.reward
    return np.cumsum(reward_X[::-1])[::-1] if gamma == 1 else discounted(reward_X, gamma)


def whiten(
    value_N: Float[np.ndarray, "N"], token_N: Int[np.ndarray, "N"], *, eps: float = 1e-8
) -> Float[np.ndarray, "N"]:
    """Whiten values that each stand for `token_N` equal tokens. All 0 below two tokens."""
    total = int(token_N.sum())
    if total < 2:
        return np.zeros_like(value_N)
    mean = (value_N * token_N).sum() / total
    var = (token_N * (value_N - mean) ** 2).sum() / (total - 1)
    return (value_N - mean) / np.sqrt(var + eps)


def _by_scope(
    alive: Sequence[Trajectory],
    values: Sequence[Float[np.ndarray, "_"]],
    tokens: Sequence[Int[np.ndarray, "_"]],
    scope: Scope,
    eps: float,
) -> list[Float[np.ndarray, "_"]]:
    """`whiten` within each scope."""
    members: dict[Hashable, list[int]] = {}
    for index, trajectory in enumerate(alive):
        members.setdefault(scope(trajectory.task), []).append(index)
    out: list[np.ndarray] = [np.zeros(0)] * len(alive)
    for chosen in members.values():
        value_X = np.concatenate([values[i] for i in chosen])
        white_X = whiten(value_X, np.concatenate([tokens[i] for i in chosen]), eps=eps)
        edges = np.cumsum([values[i].size for i in chosen])[:-1]
        for index, part in zip(chosen, np.split(white_X, edges)):
            out[index] = part
    return out


def _trained(trajectory: Trajectory) -> list[Int[np.ndarray, "_"]]:
    """Indices of each segment's trained tokens: none where the trajectory is masked, never token 0."""
    if trajectory.masked:
        return [np.zeros(0, np.int64) for _ in trajectory.segments]
    return [np.flatnonzero(segment.scored_T) for segment in trajectory.segments]


def _per_token(trajectory: Trajectory, value_X: Float[np.ndarray, "X"]) -> Credited:
    """Credit of trained tokens, laid out in the segments; a step's is the mean of its tokens."""
    tokens = _trained(trajectory)
    total_K, count_K = np.zeros(len(trajectory.steps)), np.zeros(len(trajectory.steps))
    layers = []
    for segment, where, part in zip(
        trajectory.segments, tokens, np.split(value_X, np.cumsum([len(w) for w in tokens])[:-1])
    ):
        advantage_T = np.zeros(segment.ids_T.shape, np.float32)
        advantage_T[where] = part
        layers.append(advantage_T)
        np.add.at(total_K, segment.step_T[where], part)
        np.add.at(count_K, segment.step_T[where], 1)
    return Credited(trajectory, (total_K / np.maximum(count_K, 1)).astype(np.float32), tuple(layers))
