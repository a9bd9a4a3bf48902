"""How long an episode may become: its own limits and the environment's, of which the lower holds."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.replay import cap_observation
from jaxagent.errors import ConfigError
from jaxagent.types import StepResult


@dataclass(frozen=True)
class EpisodeLimits:
    """context: tokens of prompt, messages and observations together.

    max_steps, max_observation_chars: 0 takes the environment's own limit; the lower of the two holds.
    """

    context: int
    max_steps: int = 0
    max_observation_chars: int = 0

    def __post_init__(self) -> None:
        if self.context < 2:
            raise ConfigError(f"rollout.context={self.context}; a prompt and one token need at least 2")


def steps_of(spec: EnvSpec, limits: EpisodeLimits) -> int:
    """Messages of an episode, at most."""
    return min(spec.max_steps, limits.max_steps or spec.max_steps)


def characters(spec: EnvSpec, limits: EpisodeLimits) -> int:
    """The lower of the environment's and the run's observation limits; 0 is no limit."""
    both = (spec.max_observation_chars, limits.max_observation_chars)
    return min((limit for limit in both if limit), default=sys.maxsize)


def capped(result: StepResult, limit: int) -> StepResult:
    """The answer with every text the policy sees cut to the limit."""
    messages = tuple(replace(part, content=cap_observation(part.content, limit)) for part in result.messages)
    return replace(result, observation=cap_observation(result.observation, limit), messages=messages)
