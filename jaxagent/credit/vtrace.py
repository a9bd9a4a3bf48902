"""V-trace (Espeholt et al. 2018, 1802.01561): advantages and value targets from what an older policy sampled.

    rho = min(rho_bar, pi / mu)        c = lam min(c_bar, pi / mu)
    vs_t = V_t + rho_t (r_t + gamma V_{t+1} - V_t) + gamma c_t (vs_{t+1} - V_{t+1})
    A_t  = rho_t (r_t + gamma vs_{t+1} - V_t)

pi is the trainer's policy at the start of the iteration (stream "old"), mu the sampler's ("behaviour"). Over tokens,
or over steps, where pi / mu is the product over the step's tokens. A holds rho already: the policy loss is -A log p
without another ratio. r 0, 0, 1, V .2, .4, .5, pi / mu 1.5, .5, 1, gamma .9 -> vs .585, .65, 1, A .385, .25, .5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from jaxagent.credit.group import survivors
from jaxagent.credit.tokens import Estimated, bootstrap_value, sampled, token_rewards
from jaxagent.errors import ConfigError
from jaxagent.rewards.step_rewards import Rewards
from jaxagent.stage import Credit
from jaxagent.types import Credited, Group, Trajectory

MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class VtraceRule:
    """Fields that GaeRule has too mean the same there."""

    level: Literal["token", "step"] = "token"
    gamma: float = 1.0
    lam: float = 1.0
    rho_bar: float = 1.0
    c_bar: float = 1.0
    value_range: tuple[float, float] = (-np.inf, np.inf)
    rewards: Rewards = "outcome"
    bootstrap: bool = False

    def __post_init__(self) -> None:
        if not (0 <= self.gamma <= 1 and 0 <= self.lam <= 1):
            raise ConfigError(f"vtrace: gamma={self.gamma}, lam={self.lam}; expected numbers from 0 to 1")
        if not 0 < self.c_bar <= self.rho_bar:
            raise ConfigError(
                f"vtrace: c_bar={self.c_bar}, rho_bar={self.rho_bar}; expected 0 < c_bar <= rho_bar, or the targets "
                "belong to no policy"
            )

    @property
    def needs(self) -> tuple[str, ...]:
        """Token streams that the stage has to score."""
        return ("old", "value", *(("bootstrap",) if self.bootstrap else ()))


def vtrace(rule: VtraceRule) -> Credit:
    """Advantages per token; targets as token stream "return"."""

    def credit(groups: Sequence[Group]) -> list[Credited]:
        return [estimate(t, rule).credited() for group in groups for t in survivors(group)]

    return credit


def estimate(trajectory: Trajectory, rule: VtraceRule) -> Estimated:
    tokens = sampled(trajectory)
    reward_X = token_rewards(tokens, rule.rewards)
    value_X = np.clip(tokens.stream("value"), *rule.value_range)
    log_X = tokens.stream("old") - tokens.stream("behaviour")
    after = float(np.clip(bootstrap_value(trajectory), *rule.value_range)) if rule.bootstrap else 0.0
    if not len(reward_X):
        return Estimated(tokens, reward_X, reward_X)
    turn_X = np.arange(len(reward_X))
    if rule.level == "step":
        first_J, _, turn_X = tokens.turns()
        reward_X, log_X = np.bincount(turn_X, reward_X), np.bincount(turn_X, log_X)
        value_X = value_X[first_J]
    ratio_X = np.exp(np.clip(log_X, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    target_X, advantage_X = targets(reward_X, value_X, ratio_X, rule, after=after)
    measured = {
        "vtrace/rho_clip_frac": float((ratio_X > rule.rho_bar).mean()),
        "vtrace/c_mean": float(rule.lam * np.minimum(rule.c_bar, ratio_X).mean()),
    }
    return Estimated(tokens, advantage_X[turn_X], target_X[turn_X], measured)


def targets(
    reward_X: Float[np.ndarray, "X"],
    value_X: Float[np.ndarray, "X"],
    ratio_X: Float[np.ndarray, "X"],
    rule: VtraceRule,
    *,
    after: float = 0.0,
) -> tuple[Float[np.ndarray, "X"], Float[np.ndarray, "X"]]:
    """(vs, A) of decisions in a row; `after` is the value of the state after the last one."""
    rho_X = np.minimum(rule.rho_bar, ratio_X)
    c_X = rule.lam * np.minimum(rule.c_bar, ratio_X)
    next_X = np.append(value_X[1:], after)
    delta_X = rho_X * (reward_X + rule.gamma * next_X - value_X)
    vs_X, ahead = np.zeros(len(reward_X)), 0.0  # ahead: vs - V of the decision after this one
    for i in range(len(reward_X) - 1, -1, -1):
        ahead = delta_X[i] + rule.gamma * c_X[i] * ahead
        vs_X[i] = value_X[i] + ahead
    advantage_X = rho_X * (reward_X + rule.gamma * np.append(vs_X[1:], after) - value_X)
    return vs_X, advantage_X
