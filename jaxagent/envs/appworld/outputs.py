"""Where an episode's outputs go, so that no two rollouts of a task meet and `appworld evaluate` can read them.

    <root>/experiments/outputs/<experiment>/rollout_0/tasks/<task id>/…      the first rollout of every task
                                            rollout_1/…                      the second

A kept rollout takes the smallest free number of its task: an evaluation with one rollout a task is then the official
experiment `<experiment>/rollout_0`.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Place:
    """Owner of one rollout's outputs. `experiment` is the name that AppWorld knows them by."""

    root: Path
    experiment: str
    task_id: str
    kept: bool = False

    @property
    def folder(self) -> Path:
        """What AppWorld writes for this rollout."""
        return _outputs(self.root) / self.experiment / "tasks" / self.task_id

    def discard(self) -> None:
        """Give the place back: a kept rollout's number is free again, the name of another is used once."""
        shutil.rmtree(self.folder if self.kept else self.folder.parents[1], ignore_errors=True)
        if self.kept:
            _claim(self.root, self.experiment, self.task_id).unlink(missing_ok=True)


def take(root: Path, experiment: str, task_id: str) -> Place:
    """The smallest free rollout number of a task. A claim whose process died before a verdict counts as free."""
    with _locked(_outputs(root) / experiment):
        for number in itertools.count():
            place = Place(root, f"{experiment}/rollout_{number}", task_id, kept=True)
            claim = _claim(root, place.experiment, task_id)
            if not _is_taken(claim, place):
                claim.parent.mkdir(parents=True, exist_ok=True)
                claim.write_text(f"{socket.gethostname()} {os.getpid()}")
                return place
    raise AssertionError("numbers do not end")


def _is_taken(claim: Path, place: Place) -> bool:
    if not claim.exists():
        return place.folder.exists()  # another program's outputs are left alone
    if (place.folder / "evaluation").exists():
        return True
    host, _, process = claim.read_text().partition(" ")
    return host != socket.gethostname() or _is_alive(int(process))


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def _outputs(root: Path) -> Path:
    return root / "experiments" / "outputs"


def _claim(root: Path, experiment: str, task_id: str) -> Path:
    return _outputs(root) / experiment / "claims" / task_id


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
