"""One episode of a TextWorld game: an `Env` over the package's interpreter of story files.

Commands to the interpreter itself never reach it: `undo` and `restart` would take moves back, `save` and `script` write
files, `quit` waits for a yes, and `tw-…` prints the state of the world. Nor do control characters, letters beyond
ASCII or long lines: on those the interpreter hangs, crashes, or writes a recording, as they are its hot keys.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from typing import Any

from jaxagent.envs.entry import need
from jaxagent.envs.textworld.making import Recipe, make
from jaxagent.types import Action, Evaluation, ExecStatus, StepResult, Task

INSTALL = "pip install 'jaxagent[textworld]' (compiles an interpreter: gcc and make)"
REFUSALS = (  # how Inform begins its answer to what it does not understand or what cannot be done
    "That's not a verb I recogni",
    "That's not something",
    "I didn't understand",
    "I only understood you as far as",
    "I beg your pardon",
    "Which do you mean",
    "What do you want to",
    "You can't ",
    "You have to ",
    "You need to ",
    "You haven't ",
    "You aren't ",
    "You already ",
)
META = frozenset(
    (
        "undo",
        "restart",
        "restore",
        "save",
        "quit",
        "q",
        "script",
        "transcript",
        "unscript",
        "recording",
        "replay",
    )
)
LONGEST = 190  # characters; the interpreter's buffer has 198
PRINTABLE = re.compile(r"[ -~]*")
UNKNOWN = "That's not a verb I recognise."
SEVERAL = re.compile(r"[.;,!?\n]|\bthen\b|\band\b")  # what Inform lets stand between two commands of a line
BANNER = re.compile(r"[\s\\/|$_>]*(?:\$\$|__)[\s\\/|$_>]*")  # a line of the logo that opens each game
STATUS = re.compile(r"\n?>[^\n>]*\Z")  # the interpreter's prompt, and the status line behind it


def readable(text: str) -> str:
    """The game's answer without logo, prompt, status line and runs of blank lines."""
    lines = [line.rstrip() for line in STATUS.sub("", text.rstrip()).splitlines()]
    kept = "\n".join("" if BANNER.fullmatch(line) else line for line in lines)
    return re.sub(r"\n{3,}", "\n\n", kept).strip()


def is_typed(command: str) -> bool:
    """Whether the interpreter takes these characters as a line of input."""
    return len(command) <= LONGEST and PRINTABLE.fullmatch(command) is not None


def is_meta(command: str) -> bool:
    """Whether a command, or one of several on the line, is to the interpreter."""
    words = [part.split() for part in SEVERAL.split(command.lower())]
    return any(part and (part[0] in META or part[0].startswith("tw-")) for part in words)


class TextWorldEnv:
    """recipe: task -> how its game is made. admissible: list the commands that would do something (slower).

    A step's reward is what it added to the game's score, as a share of the highest score; the verdict is the score.
    """

    def __init__(self, recipe: Callable[[Task], Recipe], *, admissible: bool = False):
        self._recipe, self._admissible = recipe, admissible
        self._game: Any = None
        self._now: Any = None
        self._best, self._score = 1, 0

    def reset(self, task: Task) -> StepResult:
        story = make(self._recipe(task))
        textworld = need("textworld", install=INSTALL)
        wanted = {"admissible_commands": True} if self._admissible else {}
        infos = textworld.EnvInfos(
            won=True, lost=True, score=True, max_score=True, description=True, inventory=True, **wanted
        )
        self._game = textworld.start(str(story), infos)
        self._game.seed(task.seed)
        self._now = self._game.reset()
        self._best, self._score = max(1, int(self._now.max_score or 1)), 0
        return self._answer(readable(self._now.feedback), ExecStatus.OK, 0.0)

    def step(self, action: Action) -> StepResult:
        if action.error:
            return self._answer(action.error, ExecStatus.INVALID, 0.0)
        if not is_typed(action.text) or is_meta(action.text):
            return self._answer(UNKNOWN, ExecStatus.RUNTIME_ERROR, 0.0)
        self._now, score, _ = self._game.step(action.text)
        gained, self._score = int(score or 0) - self._score, int(score or 0)
        text = readable(self._now.feedback)
        status = ExecStatus.RUNTIME_ERROR if text.startswith(REFUSALS) else ExecStatus.OK
        return self._answer(text, status, gained / self._best)

    def evaluate(self) -> Evaluation:
        score = min(max(self._score, 0), self._best)
        failures = () if self._now.won else (f"the game is not won: {score} of {self._best} points",)
        return Evaluation(bool(self._now.won), score, self._best, failures, {"score": score / self._best})

    def close(self) -> None:
        """Each game has its copy of the interpreter's library in memory until then."""
        if self._game is not None:
            self._game.close()
            self._game = None

    def _answer(self, text: str, status: ExecStatus, reward: float) -> StepResult:
        now = self._now
        state = f"{now.description}\n{now.inventory}\n{self._score}"
        if self._admissible:
            text = f"{text}\n\nAdmissible commands: {', '.join(map(repr, now.admissible_commands))}."
        return StepResult(
            text,
            status,
            done=bool(now.won or now.lost),
            reward=reward,
            anchor=f"{zlib.crc32(state.encode()):08x}",
        )
