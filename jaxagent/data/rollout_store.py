"""The rollouts of a run, whole, in one file: to score them again, to read them, to train on them with another method.

    rollouts.bin      one line of JSON {"format", "version", "origin"}, then one frame a group:
                      "GRP1" | bytes of head and body, CRC-32 of both | head: JSON, for an index | body: encode(group)

The file is appended to, an iteration at a time. What a kill cut off behind the last whole frame is skipped with a
notice, and removed by the next writer. A run that goes on from iteration n removes what is of n and later first: those
iterations are made again. Not the job of this file: how a group becomes bytes (rollout_codec.py).
"""

from __future__ import annotations

import json
import logging
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import BinaryIO

from jaxagent.data.rollout_codec import decode, encode
from jaxagent.errors import ConfigError, DataError
from jaxagent.types import Group

log = logging.getLogger(__name__)

FILE = "rollouts.bin"  # inside a run folder
FORMAT, VERSION, MAGIC = "jaxagent rollouts", 1, b"GRP1"
FRAME = struct.Struct("<4sIII")


@dataclass(frozen=True)
class Origin:
    """What the token ids and log-probs of a store belong to. Two runs whose origins differ cannot share rollouts.

    tokenizer, template: what made ids of texts. model: its sizes. temperature: of sampling, which log-probs are under.
    """

    tokenizer: str
    template: str
    model: str
    temperature: float

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


@dataclass(frozen=True)
class Entry:
    """One stored group, unread: bytes [start, end) of the file.

    iteration: of the run, counted over all its stages, as in metrics.jsonl. longest: tokens of its longest segment.
    """

    iteration: int
    stage: str
    task: str
    trajectories: int
    longest: int
    start: int
    end: int


class RolloutWriter:
    """Owner of a store that is written. after: the last iteration that stays; what is of later ones is removed."""

    def __init__(self, path: Path, origin: Origin, *, after: int = -1):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size:
            store = RolloutStore(path)
            store.origin.check(origin, path)
            later = (entry.start for entry in store.entries if entry.iteration > after)
            with path.open("r+b") as file:
                file.truncate(next(later, store.end))
        self._file = path.open("ab")
        if not path.stat().st_size:
            head = {"format": FORMAT, "version": VERSION, "origin": asdict(origin)}
            self._append(json.dumps(head).encode() + b"\n")

    def write(self, groups: Sequence[Group], *, iteration: int, stage: str) -> None:
        """Append an iteration; it is on the disk when this returns."""
        self._append(b"".join(_frame(group, iteration, stage) for group in groups))

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
        with self.path.open("rb") as file:
            self.origin = _read_head(file, self.path)
            self.entries, self.end = _read_index(file, self.path)

    @property
    def iterations(self) -> list[int]:
        return sorted({entry.iteration for entry in self.entries})

    def read(self, entry: Entry) -> Group:
        with self.path.open("rb") as file:
            file.seek(entry.start)
            head, body = _read_frame(file) or (b"", b"")
        if not head:
            raise DataError(
                f"{self.path} is damaged at byte {entry.start} ({entry.task}); copy the file again"
            )
        return decode(body)

    def groups(self, iteration: int) -> list[Group]:
        """The groups of an iteration, in the order in which they were trained on."""
        return [self.read(entry) for entry in self.entries if entry.iteration == iteration]


def _frame(group: Group, iteration: int, stage: str) -> bytes:
    lengths = (len(segment.ids_T) for trajectory in group.trajectories for segment in trajectory.segments)
    about = {
        "iteration": iteration,
        "stage": stage,
        "task": group.task.task_id,
        "trajectories": len(group.trajectories),
        "longest": max(lengths, default=0),
    }
    head, body = json.dumps(about).encode(), encode(group)
    return FRAME.pack(MAGIC, len(head), len(body), zlib.crc32(body, zlib.crc32(head))) + head + body


def _read_frame(file: BinaryIO) -> tuple[bytes, bytes] | None:
    """(head, body) of the frame here, or None if it is not whole."""
    start = file.read(FRAME.size)
    if len(start) < FRAME.size:
        return None
    magic, head_size, body_size, checksum = FRAME.unpack(start)
    head, body = file.read(head_size), file.read(body_size)
    whole = magic == MAGIC and zlib.crc32(body, zlib.crc32(head)) == checksum
    return (head, body) if whole else None


def _read_head(file: BinaryIO, path: Path) -> Origin:
    try:
        head = json.loads(file.readline())
        if head["format"] != FORMAT:
            raise ValueError(head["format"])
        version, origin = head["version"], head["origin"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no store of rollouts; expected a {FILE} that a run wrote") from error
    if version != VERSION:
        raise DataError(
            f"{path} has version {version} of the format, this jaxagent reads {VERSION}; update jaxagent"
        )
    return Origin(**origin)


def _read_index(file: BinaryIO, path: Path) -> tuple[list[Entry], int]:
    """Every whole group, and where they end. Heads are read, bodies are stepped over, the last one is checked."""
    size, entries = os.fstat(file.fileno()).st_size, list[Entry]()
    position = file.tell()
    while position + FRAME.size <= size:
        magic, head_size, body_size, _ = FRAME.unpack(file.read(FRAME.size))
        end = position + FRAME.size + head_size + body_size
        if magic != MAGIC or end > size:
            break
        about = json.loads(file.read(head_size))
        entries.append(Entry(**about, start=position, end=end))
        position = file.seek(end)
    if entries and position == size:  # the length may be on the disk before the bytes are
        file.seek(entries[-1].start)
        if _read_frame(file) is None:
            position = entries.pop().start
    if position < size:
        log.warning(
            "%s: %d bytes behind byte %d were not written to their end; skipped",
            path,
            size - position,
            position,
        )
    return entries, position
