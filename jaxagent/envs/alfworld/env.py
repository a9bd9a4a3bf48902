"""One episode of an ALFWorld game: an `Env` over either engine."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from typing import Literal

from jaxagent.envs.alfworld.engine import Engine, open_engine
from jaxagent.envs.alfworld.games import Game
from jaxagent.envs.alfworld.seen import NOTHING
from jaxagent.types import Action, Evaluation, ExecStatus, StepResult, Task

EngineName = Literal["python", "textworld"]
AnchorName = Literal["observation", "state"]
OLD_PUT = re.compile(r"put (.+?) (?:in/on|in|on|into|onto) (.+)")


class AlfworldEnv:
    """game: task -> its game. admissible: list the commands that would do something behind every answer.

    old_put: take "put X in/on Y", the verb of older versions, for "move X to Y". anchor: what step-level credit groups
    by, GiGPO's raw text ("observation") or a digest of everything that commands change ("state").
    """

    def __init__(
        self,
        game: Callable[[Task], Game],
        *,
        engine: EngineName = "python",
        admissible: bool = False,
        old_put: bool = False,
        anchor: AnchorName = "observation",
    ):
        self._game, self._name = game, engine
        self._admissible, self._old_put, self._anchor = admissible, old_put, anchor
        self._engine: Engine | None = None

    def reset(self, task: Task) -> StepResult:
        self._engine = open_engine(self._name, self._game(task))
        return self._answer(self._engine.start())

    def step(self, action: Action) -> StepResult:
        if action.error:
            return self._answer(action.error, ExecStatus.INVALID)
        text = self._open.step(self._command(action.text))
        return self._answer(text, ExecStatus.RUNTIME_ERROR if text == NOTHING else ExecStatus.OK)

    def evaluate(self) -> Evaluation:
        won = self._open.won
        failures = () if won else ("the goal is not reached",)
        return Evaluation(won, passed=int(won), total=1, failures=failures, info={"score": float(won)})

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    @property
    def _open(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("the game is not open: call reset first, and nothing after close")
        return self._engine

    def _command(self, text: str) -> str:
        old = OLD_PUT.fullmatch(text) if self._old_put else None
        return f"move {old[1]} to {old[2]}" if old else text

    def _answer(self, text: str, status: ExecStatus = ExecStatus.OK) -> StepResult:
        engine, anchor = self._open, text
        if self._anchor == "state":
            anchor = f"{zlib.crc32(repr(engine.facts()).encode()):08x}"
        if self._admissible:
            listed = ", ".join(f"'{command}'" for command in engine.admissible() if command != "help")
            text = f"{text}\n\nAdmissible commands: {listed}."
        won = engine.won
        return StepResult(text, status, done=won, reward=float(won), anchor=anchor)
