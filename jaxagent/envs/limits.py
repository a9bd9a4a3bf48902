"""How long a call to an environment may take, and how long a worker process may serve."""

from __future__ import annotations

from dataclasses import dataclass

from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.replay import Prefix

STEP_S = 60.0
GROWTH_GB = 1.0


@dataclass(frozen=True)
class Deadlines:
    """Seconds each call may take.

    start_s: until a new worker answers (imports included). reset_s includes the import of the environment.
    step_s:  0 takes the environment's own `EnvSpec.worker["step_s"]`, 60 where it has none.
    """

    start_s: float = 60.0
    reset_s: float = 120.0
    step_s: float = 0.0
    evaluate_s: float = 60.0
    close_s: float = 20.0

    def of(self, spec: EnvSpec, prefix: Prefix | None = None) -> dict[str, float]:
        """Seconds by call name. Opening takes a step more for every action that is replayed."""
        step_s = self.step_s or float(spec.worker.get("step_s", STEP_S))
        return {
            "open": self.reset_s + step_s * len(prefix.actions if prefix else ()),
            "step": step_s,
            "snapshot": step_s,
            "evaluate": self.evaluate_s,
            "close": self.close_s,
        }


@dataclass(frozen=True)
class Wear:
    """When a worker process is replaced by a fresh one, as soon as its last episode has ended.

    episodes:  served by it; 0 is no limit.
    growth_gb: resident memory gained since its first episode ended: what an environment loads once is no leak.
    """

    episodes: int = 0
    growth_gb: float = GROWTH_GB

    @classmethod
    def of(cls, spec: EnvSpec) -> Wear:
        """The environment's hints `episodes_per_worker` and `growth_gb`."""
        hints = spec.worker
        return Wear(int(hints.get("episodes_per_worker", 0)), float(hints.get("growth_gb", GROWTH_GB)))

    def is_over(self, episodes: int, first: int, now: int) -> bool:
        """first, now: resident bytes after the process's first episode, and after its last."""
        grown = now - first > self.growth_gb * 2**30
        return grown or bool(self.episodes and episodes >= self.episodes)
