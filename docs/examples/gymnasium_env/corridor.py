"""A Gymnasium environment of one's own: walk to the lamp. Its run file is configs/runs/gymnasium_tiny.yaml."""

import re

import gymnasium
from gymnasium import spaces


class Corridor(gymnasium.Env):
    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012

    def __init__(self, length: int = 6, render_mode: str | None = None):
        self.length, self.render_mode = length, render_mode
        self.observation_space = spaces.Text(60, charset=frozenset(map(chr, range(32, 127))))
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.lamp, self.place = (int(n) for n in self.np_random.permutation(self.length)[:2])
        return self._seen(), {}

    def step(self, action):
        self.place = min(max(self.place + (1 if action else -1), 0), self.length - 1)
        there = self.place == self.lamp
        return self._seen(), float(there), there, False, {}

    def _seen(self) -> str:
        return f"You are at {self.place}. The lamp is at {self.lamp}."


class Expert:
    def __init__(self, task, rng, sloppiness: float):
        self.rng, self.sloppiness = rng, sloppiness

    def act(self, observation: str) -> str:
        place, lamp = (int(n) for n in re.findall(r"\d+", observation))
        right = lamp > place if self.rng.random() >= self.sloppiness else self.rng.random() < 0.5
        return "right" if right else "left"
