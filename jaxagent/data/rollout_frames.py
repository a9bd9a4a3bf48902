"""Frames of a store of rollouts, one a group: written, indexed, and found again behind damage.

    "GRP1" | bytes of head and body, CRC-32 of both | head: JSON, for an index | body: encode(group)

In: groups, or a file that stands behind its first line. Out: bytes, or entries. What belongs to a whole store, and what
is an error, is rollout_store.py's job.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from dataclasses import dataclass
from typing import BinaryIO

from jaxagent.data.rollout_codec import encode
from jaxagent.types import Group

MAGIC = b"GRP1"
FRAME = struct.Struct("<4sIII")


@dataclass(frozen=True)
class Entry:
    """One stored group, unread: bytes [start, end) of the file.

    iteration: of the run, counted over all its stages, as in metrics.jsonl. longest: tokens of its longest segment.
    sampled: the most that the policy sampled of a segment; 0 in stores that do not say.
    """

    iteration: int
    stage: str
    task: str
    trajectories: int
    longest: int
    start: int
    end: int
    sampled: int = 0


@dataclass(frozen=True)
class Index:
    """The whole groups in order, and where they end. behind: whole groups behind damage; none after a mere cut."""

    entries: tuple[Entry, ...]
    end: int
    behind: tuple[Entry, ...]


def frame(group: Group, iteration: int, stage: str) -> bytes:
    segments = [segment for trajectory in group.trajectories for segment in trajectory.segments]
    about = {
        "iteration": iteration,
        "stage": stage,
        "task": group.task.task_id,
        "trajectories": len(group.trajectories),
        "longest": max((len(segment.ids_T) for segment in segments), default=0),
        "sampled": max((int(segment.mask_T.sum()) for segment in segments), default=0),
    }
    head, body = json.dumps(about).encode(), encode(group)
    return FRAME.pack(MAGIC, len(head), len(body), zlib.crc32(body, zlib.crc32(head))) + head + body


def read_frame(file: BinaryIO, start: int) -> tuple[bytes, bytes] | None:
    """(head, body) of the frame at this byte, or None if it is not whole."""
    file.seek(start)
    fixed = file.read(FRAME.size)
    if len(fixed) < FRAME.size:
        return None
    magic, head_size, body_size, checksum = FRAME.unpack(fixed)
    if magic != MAGIC or start + FRAME.size + head_size + body_size > os.fstat(file.fileno()).st_size:
        return None
    head, body = file.read(head_size), file.read(body_size)
    return (head, body) if zlib.crc32(body, zlib.crc32(head)) == checksum else None


def read_index(file: BinaryIO) -> Index:
    """Every group from here on. Heads are read, bodies are stepped over, the last one is checked: the length may be on
    the disk before the bytes are."""
    size, entries = os.fstat(file.fileno()).st_size, list[Entry]()
    position = file.tell()
    while (entry := _entry_at(file, position, size)) is not None:
        entries.append(entry)
        position = entry.end
    if entries and read_frame(file, entries[-1].start) is None:
        position = entries.pop().start
    return Index(tuple(entries), position, tuple(_behind(file, position, size)) if position < size else ())


def _entry_at(file: BinaryIO, start: int, size: int) -> Entry | None:
    """What the frame at this byte says of itself; None if that cannot be."""
    file.seek(start)
    fixed = file.read(FRAME.size)
    if len(fixed) < FRAME.size:
        return None
    magic, head_size, body_size, _ = FRAME.unpack(fixed)
    end = start + FRAME.size + head_size + body_size
    return _entry(file.read(head_size), start, end) if magic == MAGIC and end <= size else None


def _entry(head: bytes, start: int, end: int) -> Entry | None:
    try:
        return Entry(**json.loads(head), start=start, end=end)
    except (ValueError, TypeError):
        return None


def _behind(file: BinaryIO, position: int, size: int) -> list[Entry]:
    """Whole groups, their bytes checked, that begin anywhere behind `position`."""
    entries = list[Entry]()
    with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
        start = data.find(MAGIC, position + 1)
        while start >= 0:
            whole = read_frame(file, start)
            entry = None
            if whole is not None:
                entry = _entry(whole[0], start, start + FRAME.size + sum(map(len, whole)))
            if entry is not None:
                entries.append(entry)
            start = data.find(MAGIC, start + 1 if entry is None else entry.end)
    return entries
