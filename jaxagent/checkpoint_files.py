"""The folders of a run's checkpoints: which of them are whole. Starts no device, imports no jax.

A checkpoint is whole if its commit record, written last, is there, and the files are those that it lists.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

from etils import epath

COMMIT, HOST, DEVICE = "commit.json", "host.json", "device"


def committed(path: epath.Path) -> dict[str, Any] | None:
    """The commit record if the checkpoint is whole: every file there with its size, host state unchanged."""
    try:
        record = json.loads((path / COMMIT).read_text())
        host = (path / HOST).read_text()
    except (OSError, ValueError):
        return None
    whole = zlib.crc32(host.encode()) == record["host_crc32"] and sizes_of(path) == record["files"]
    return record if whole else None


def sizes_of(path: epath.Path, prefix: str = "") -> dict[str, int]:
    """Relative name -> bytes of every file below `path`, the commit record itself left out."""
    sizes: dict[str, int] = {}
    for child in path.iterdir():
        name = prefix + child.name
        if child.is_dir():
            sizes |= sizes_of(child, name + "/")
        elif name not in (COMMIT, COMMIT + ".tmp"):
            sizes[name] = child.stat().length
    return sizes


def write_whole(path: epath.Path, text: str) -> None:
    """Write a small file so that it is there whole or not at all."""
    partial = path.parent / (path.name + ".tmp")
    partial.write_text(text)
    partial.replace(path)


def whole_steps(folder: str | epath.PathLike) -> list[int]:
    """Steps of the whole checkpoints of a folder, ascending; starts no device."""
    found = checkpoint_folders(epath.Path(folder))
    return sorted({step for path, step in found if committed(path) is not None})


def checkpoint_folders(folder: epath.Path) -> list[tuple[epath.Path, int]]:
    """Checkpoint folders, whole or not, in the order (step, attempt)."""
    found = []
    for path in folder.iterdir() if folder.exists() else ():
        step, _, attempt = path.name.partition(".")
        if step.isdigit() and attempt.isdigit():
            found.append((int(step), int(attempt), path))
    return [(path, step) for step, _, path in sorted(found, key=lambda item: item[:2])]
