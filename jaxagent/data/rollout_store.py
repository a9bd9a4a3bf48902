"""The rollouts of a run, whole, in one file: to score them again, to read them, to train on them with another method.

    rollouts.bin      one line of JSON {"format", "version", "origin"}, then one frame a group (rollout_frames.py)

The file is appended to, an iteration at a time. What a kill cut off behind the last whole frame is skipped with a
notice, and removed by the next writer. Damage with whole groups behind it is an error. A run that goes on from
iteration n removes what is of n and later first: those iterations are made again. Not the job of this file: how a group
becomes bytes (rollout_codec.py).
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import BinaryIO

from jaxagent.data.rollout_codec import decode
from jaxagent.data.rollout_frames import Entry, Index, frame, read_frame, read_index
from jaxagent.errors import ConfigError, DataError
from jaxagent.types import Group

log = logging.getLogger(__name__)

FILE = "rollouts.bin"  # inside a run folder
FORMAT, VERSION = "jaxagent rollouts", 1
START = b'{"format": "jaxagent rollouts"'  # of the first line
LINE = 1 << 16  # bytes of a first line, at most


@dataclass(frozen=True)
class Origin:
    """What the token ids and log-probs of a store belong to. Two runs whose origins differ cannot share rollouts.

    tokenizer, template: what made ids of texts. model: its sizes. temperature: of sampling, which log-probs are under.
    schedule: in words, of a temperature that changed from iteration to iteration.
    """

    tokenizer: str
    template: str
    model: str
    temperature: float
    schedule: str = ""

    def check(self, run: Origin, path: Path) -> None:
        """Raise ConfigError unless `run` reads the rollouts of this origin as they were sampled."""
        differs = [f.name for f in fields(self) if getattr(self, f.name) != getattr(run, f.name)]
        if differs:
            shown = "; ".join(
                f"{n}: {getattr(self, n)} there, {getattr(run, n)} in this run" for n in differs
            )
            raise ConfigError(
                f"{path} was written by another {', '.join(differs)} ({shown}): its token ids or log-probs would mean "
                "something else here. Train with the model, tokenizer and temperature that sampled it"
            )


class RolloutWriter:
    """Owner of a store that is written. after: the last iteration that stays; what is of later ones is removed."""

    def __init__(self, path: Path, origin: Origin, *, after: int = -1):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size:
            kept = _kept(path, origin, after)
            with path.open("r+b") as file:
                file.truncate(kept)
        self._file = path.open("ab")
        self._last = (-1, 0)  # the iteration that was written last, and where it begins
        if not self._size:
            head = {"format": FORMAT, "version": VERSION, "origin": asdict(origin)}
            self._append(json.dumps(head).encode() + b"\n")

    def write(self, groups: Sequence[Group], *, iteration: int, stage: str) -> None:
        """Append an iteration; it is on the disk when this returns. One that is made again replaces itself."""
        frames = b"".join(frame(group, iteration, stage) for group in groups)
        number, start = self._last
        if number == iteration:
            self._file.truncate(start)
        self._last = (iteration, self._size)
        self._append(frames)

    @property
    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def _append(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class RolloutStore:
    """A store that is read: an index of its groups, and each group when it is asked for."""

    def __init__(self, path: Path):
        """path: a store, or a run folder that holds one."""
        self.path = path / FILE if path.is_dir() else path
        if not self.path.is_file():
            raise DataError(
                f"{self.path} does not exist; a run writes it while it trains, with `keep_rollouts: 1` in its run file"
            )
        self.origin, index = _opened(self.path)
        if index.behind:
            raise _damaged(self.path, index)
        self.entries, self.end = list(index.entries), index.end

    @property
    def iterations(self) -> list[int]:
        return sorted({entry.iteration for entry in self.entries})

    def read(self, entry: Entry) -> Group:
        try:
            with self.path.open("rb") as file:
                whole = read_frame(file, entry.start)
        except OSError as error:
            raise DataError(
                f"{self.path} cannot be read any more ({error.strerror}); what trains on it needs it to its end: put "
                "it back and start again"
            ) from error
        if whole is None:
            raise DataError(
                f"{self.path} is damaged at byte {entry.start} ({entry.task}); copy the file again"
            )
        return decode(whole[1])

    def groups(self, iteration: int) -> list[Group]:
        """The groups of an iteration, in the order in which they were trained on."""
        return [self.read(entry) for entry in self.entries if entry.iteration == iteration]


def _kept(path: Path, origin: Origin, after: int) -> int:
    """Bytes of a store that a writer leaves. Raises rather than take away whole groups that stay."""
    with path.open("rb") as file:
        if _cut_short(file.readline(LINE)):
            return 0
    there, index = _opened(path)
    there.check(origin, path)
    if any(entry.iteration <= after for entry in index.behind):
        raise _damaged(path, index)
    later = (entry.start for entry in index.entries if entry.iteration > after)
    return next(later, index.end)


def _damaged(path: Path, index: Index) -> DataError:
    return DataError(
        f"{path} is damaged at byte {index.end}, with {len(index.behind)} whole groups behind it; copy the file again, "
        "or move it away"
    )


def _opened(path: Path) -> tuple[Origin, Index]:
    with path.open("rb") as file:
        origin, index = _read_head(file, path), read_index(file)
        size = os.fstat(file.fileno()).st_size
    if index.end < size and not index.behind:
        log.warning(
            "%s: %d bytes behind byte %d were not written to their end; skipped",
            path,
            size - index.end,
            index.end,
        )
    return origin, index


def _cut_short(line: bytes) -> bool:
    """Whether a first line is the beginning of one of ours and no more."""
    return bool(line) and not line.endswith(b"\n") and line.startswith(START[: len(line)])


def _read_head(file: BinaryIO, path: Path) -> Origin:
    line = file.readline(LINE)
    if _cut_short(line):
        raise DataError(f"{path} was not written to its end: its first line is cut; it holds no rollouts")
    try:
        head = json.loads(line)
        if head["format"] != FORMAT:
            raise ValueError(head["format"])
        version = head["version"]
        origin = Origin(**head["origin"]) if version == VERSION else None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no store of rollouts; expected a {FILE} that a run wrote") from error
    if origin is None:
        raise DataError(
            f"{path} has version {version} of the format, this jaxagent reads {VERSION}; update jaxagent"
        )
    return origin
