"""Returns that a recipe's options can name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from jaxagent.rewards.outcome import success, test_fraction
from jaxagent.stage import Reward

RewardName = Literal["test_fraction", "success"]

REWARDS: Mapping[str, Reward] = {"test_fraction": test_fraction, "success": success}
