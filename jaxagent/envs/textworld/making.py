"""Making a game: the package's `tw-make` in a process of its own, into a folder that is kept.

In: a `Recipe`. Out: the path of `game.z8`, beside it `game.json` with the walkthrough. A game is made once: makers of
the same game in several processes wait for the first (a lock), and what lies in the folder is complete (a rename). It
takes seconds of CPU time (Inform 7 is compiled), so it has a time-out. Same recipe, same game.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jaxagent.errors import DataError

STORY = "game.z8"
ABOUT = "game.json"
NO_GAME = "QuestGenerationError"
ATTEMPTS = 10
STRIDE = 10_000_000  # between a seed and the one that stands in for it; beyond the seeds of all splits


@dataclass(frozen=True)
class Recipe:
    """arguments: of tw-make, without seed and output. folder: where games are kept."""

    folder: str
    arguments: tuple[str, ...]
    seed: int
    timeout_s: float

    @property
    def place(self) -> Path:
        """One folder a game: the kind in words, and a digest of everything that decides what is made."""
        key = json.dumps([version("textworld"), self.arguments])
        digest = hashlib.sha256(key.encode()).hexdigest()[:12]
        return Path(self.folder).expanduser() / f"{self.arguments[0]}-{digest}" / f"seed-{self.seed}"


def make(recipe: Recipe) -> Path:
    """The story file, made now if it is not there. Raises DataError with what tw-make said."""
    place = recipe.place
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with open(place.parent / f"{place.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file closes, also if this process dies
            if not place.is_dir():
                _make(recipe, place)
    return place / STORY


def _make(recipe: Recipe, place: Path) -> None:
    """Some seeds hold no game of the wanted kind (treasure_hunter): then another seed stands in."""
    deadline = time.monotonic() + recipe.timeout_s
    with tempfile.TemporaryDirectory(prefix=f"{place.name}-", dir=place.parent) as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        for attempt in range(ATTEMPTS):
            seed = recipe.seed + attempt * STRIDE
            done = _tw_make(recipe, seed, made / STORY, deadline - time.monotonic())
            if done.returncode == 0 and (made / STORY).is_file() and (made / ABOUT).is_file():
                made.rename(place)
                return
            if NO_GAME not in done.stderr or attempt == ATTEMPTS - 1:
                said = (done.stderr or done.stdout).strip()[-600:]
                command = f"tw-make {' '.join(recipe.arguments)}"
                raise DataError(f"{command} failed ({done.returncode}) for seed {seed}: {said}")


def _tw_make(recipe: Recipe, seed: int, story: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    script = Path(sysconfig.get_path("scripts")) / "tw-make"
    output = ["--seed", str(seed), "--output", str(story), "--force", "--silent"]
    try:
        return subprocess.run(
            [sys.executable, str(script), *recipe.arguments, *output],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=max(seconds, 0.0),
            env={**os.environ, "PYTHONHASHSEED": "0"},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(
            f"tw-make {' '.join(recipe.arguments)} did not end in {recipe.timeout_s:g} s; make the games before "
            "the run (docs/environments/textworld.md) or raise env.options.make_s"
        ) from error


def about(recipe: Recipe) -> Mapping[str, Any]:
    """What tw-make notes of a game: `walkthrough`, a winning list of commands, among others."""
    return json.loads((make(recipe).parent / ABOUT).read_text(encoding="utf-8"))["metadata"]
