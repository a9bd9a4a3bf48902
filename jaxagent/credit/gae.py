"""Generalised advantage estimation with a value function (Schulman et al. 2016), over tokens, over steps, or both.

    delta_t = r_t + gamma V_{t+1} - V_t        A_t = delta_t + gamma lam A_{t+1}        ret_t = A_t + V_t

token     every sampled token decides. What the environment wrote is skipped, not passed through as zeros:
          r 0, 0, 1, V .2, .4, .6, gamma 1, lam .9 -> A .704, .56, .4
step      every step decides; its value is that before its first token, and its tokens share its advantage:
          r 0, 0, 1, V .3, .5, .8, gamma .95, lam .9 -> A .543505, .431, .2
bilevel   steps first, each valued at its last token; inside a step the last token has the step's advantage and GAE over
          tokens runs back from there (RAGEN, 2504.20073, with steps told by their number, not by rewards that are not
          0): V .3, .6, r 0, 1, gamma_turn .95 -> steps .65, .4

`ret` is what the value function learns. With lam_critic it is made with a lam of its own (VAPO, 2504.05118: 1, the
plain return). `monte_carlo` needs no values at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float

from jaxagent.credit.batch import whiten
from jaxagent.credit.group import survivors
from jaxagent.credit.tokens import (
    Estimated,
    Tokens,
    bootstrap_value,
    concatenated,
    sampled,
    token_rewards,
)
from jaxagent.errors import ConfigError
from jaxagent.rewards.step_rewards import Rewards, discounted
from jaxagent.stage import Credit
from jaxagent.types import Credited, Group, Trajectory

Level = Literal["token", "step", "bilevel"]


@dataclass(frozen=True)
class GaeRule:
    """gamma, lam: of tokens, or of steps where steps alone decide. gamma_turn, lam_turn: of steps in "bilevel".

    lam_critic: lam of the value targets; None is the policy's.
    adaptive:   alpha of lam = max(0, 1 - 1 / (alpha l)), l action tokens of the trajectory (VAPO); 0 is off.
    whiten:     over all sampled tokens of the batch, after the targets are made.
    value_range: values are held within it before anything is computed from them.
    bootstrap:  an episode that its budget cut goes on with the value of its last state instead of 0.
    kl_coef:    taken off the reward of every token, times old - reference.
    """

    level: Level = "token"
    gamma: float = 1.0
    lam: float = 1.0
    gamma_turn: float = 0.95
    lam_turn: float = 1.0
    lam_critic: float | None = None
    adaptive: float = 0.0
    whiten: bool = True
    value_range: tuple[float, float] = (-np.inf, np.inf)
    rewards: Rewards = "outcome"
    bootstrap: bool = False
    kl_coef: float = 0.0

    def __post_init__(self) -> None:
        shares = {
            name: getattr(self, name) for name in ("gamma", "lam", "gamma_turn", "lam_turn", "lam_critic")
        }
        for name, value in shares.items():
            if value is not None and not 0 <= value <= 1:
                raise ConfigError(f"gae: {name}={value}; expected a number from 0 to 1")
        if self.adaptive < 0 or self.kl_coef < 0:
            raise ConfigError(f"gae: adaptive={self.adaptive}, kl_coef={self.kl_coef}; expected 0 or more")
        low, high = self.value_range
        if not low < high:
            raise ConfigError(f"gae: value_range=({low}, {high}) is empty; give the lower end first")

    @property
    def needs(self) -> tuple[str, ...]:
        """Token streams that the stage has to score."""
        return (
            "value",
            *(("bootstrap",) if self.bootstrap else ()),
            *(("old", "reference") if self.kl_coef else ()),
        )


def gae(rule: GaeRule) -> Credit:
    """Advantages per token from the token stream "value"; value targets as token stream "return"."""

    def credit(groups: Sequence[Group]) -> list[Credited]:
        parts = [estimate(t, rule) for group in groups for t in survivors(group)]
        return [part.credited() for part in (whitened(parts) if rule.whiten else parts)]

    return credit


def monte_carlo(rule: GaeRule) -> Credit:
    """The discounted return from each token on, to teach a value function that knows nothing. Advantages are 0."""
    plain = replace(rule, lam=1.0, lam_turn=1.0, lam_critic=None, adaptive=0.0, bootstrap=False)

    def credit(groups: Sequence[Group]) -> list[Credited]:
        credited = []
        for trajectory in (t for group in groups for t in survivors(group)):
            tokens = sampled(trajectory)
            reward_X = token_rewards(tokens, rule.rewards, kl_coef=rule.kl_coef)
            return_X = advantages(tokens, reward_X, np.zeros_like(reward_X), plain)
            credited.append(Estimated(tokens, np.zeros_like(return_X), return_X).credited())
        return credited

    return credit


def estimate(trajectory: Trajectory, rule: GaeRule) -> Estimated:
    """One trajectory, not whitened."""
    tokens = sampled(trajectory)
    reward_X = token_rewards(tokens, rule.rewards, kl_coef=rule.kl_coef)
    value_X = np.clip(tokens.stream("value"), *rule.value_range)
    after = float(np.clip(bootstrap_value(trajectory), *rule.value_range)) if rule.bootstrap else 0.0
    if rule.adaptive:
        rule = replace(rule, lam=adaptive_lam(len(value_X), alpha=rule.adaptive))
    advantage_X = advantages(tokens, reward_X, value_X, rule, after=after)
    target_X = advantage_X
    if rule.lam_critic is not None:
        own = replace(rule, lam=rule.lam_critic, lam_turn=rule.lam_critic)
        target_X = advantages(tokens, reward_X, value_X, own, after=after)
    return Estimated(tokens, advantage_X, target_X + decision_values(tokens, value_X, rule.level))


def whitened(parts: Sequence[Estimated]) -> list[Estimated]:
    """(A - mean) / sqrt(var + 1e-8) over all tokens that are trained on: .704, .56, .4 -> .982, .0351, -1.0171."""
    counts = [
        np.full(len(part.advantage_X), 0 if part.tokens.trajectory.masked else 1, np.int64) for part in parts
    ]
    every_X = whiten(concatenated(parts), np.concatenate([np.zeros(0, np.int64), *counts]))
    ends = np.cumsum([len(part.advantage_X) for part in parts])
    return [replace(part, advantage_X=value_X) for part, value_X in zip(parts, np.split(every_X, ends[:-1]))]


def adaptive_lam(length: int, *, alpha: float) -> float:
    """max(0, 1 - 1 / (alpha length)): alpha .05 and 100, 1,000, 10,000 tokens -> .8, .98, .998; 10 tokens -> 0."""
    return max(0.0, 1.0 - 1.0 / (alpha * length)) if length else 0.0


def advantages(
    tokens: Tokens,
    reward_X: Float[np.ndarray, "X"],
    value_X: Float[np.ndarray, "X"],
    rule: GaeRule,
    *,
    after: float = 0.0,
) -> Float[np.ndarray, "X"]:
    """A of every token at the rule's level. after: value of the state after the last token."""
    if not len(reward_X) or rule.level == "token":
        return backward(reward_X, value_X, gamma=rule.gamma, lam=rule.lam, after=after)
    first_J, last_J, turn_X = tokens.turns()
    if rule.level == "step":
        reward_J = np.bincount(turn_X, reward_X)
        advantage_J = backward(reward_J, value_X[first_J], gamma=rule.gamma, lam=rule.lam, after=after)
        return advantage_J[turn_X]
    advantage_J = backward(
        reward_X[last_J], value_X[last_J], gamma=rule.gamma_turn, lam=rule.lam_turn, after=after
    )
    delta_X = reward_X + rule.gamma * np.append(value_X[1:], 0.0) - value_X
    delta_X[last_J] = advantage_J
    inner = [
        discounted(delta_X[first : last + 1], rule.gamma * rule.lam) for first, last in zip(first_J, last_J)
    ]
    return np.concatenate(inner)


def decision_values(tokens: Tokens, value_X: Float[np.ndarray, "X"], level: Level) -> Float[np.ndarray, "X"]:
    """The value that a token's advantage is relative to: its own, or that of its step."""
    if level != "step" or not len(value_X):
        return value_X
    first_J, _, turn_X = tokens.turns()
    return value_X[first_J][turn_X]


def backward(
    reward_X: Float[np.ndarray, "X"],
    value_X: Float[np.ndarray, "X"],
    *,
    gamma: float,
    lam: float,
    after: float = 0.0,
) -> Float[np.ndarray, "X"]:
    """GAE over decisions in a row; `after` is the value of the state after the last one."""
    if not len(reward_X):
        return np.zeros(0)
    delta_X = reward_X + gamma * np.append(value_X[1:], after) - value_X
    return discounted(delta_X, gamma * lam)
