"""Walls around a process that runs an agent's code, made of Linux's Landlock: files, network, signals.

AppWorld runs the code in the process that holds the world, and lets it import `appworld`: without a wall, two lines
load the task's answer. `seal` leaves a process the files that it names; the rest of the disk, new TCP connections and
signals to other processes are refused from then on. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same numbers on x86-64 and ARM64
_NO_NEW_PRIVS, _BENEATH = 38, 1
_EXECUTE, _WRITE, _READ, _READ_DIR, _TRUNCATE, _IOCTL = 1, 2, 4, 8, 1 << 14, 1 << 15
_ON_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_REFER = 1 << 13
_libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """Landlock's version in this kernel; 0 where there is none."""
    try:
        return max(int(_libc.syscall(_CREATE, None, 0, 1)), 0)
    except (AttributeError, OSError):  # no syscall() in this libc
        return 0


def seal(*, readable: Iterable[Path], writable: Iterable[Path]) -> bool:
    """Irrevocably leave this process only these files and folders. False where the kernel has no Landlock."""
    held = version()
    if not held:
        return False
    files = (1 << 13) - 1  # version 1
    for needed, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL)):
        files |= right if held >= needed else 0
    network = 0b11 if held >= 4 else 0  # bind and connect
    scope = 0b11 if held >= 6 else 0  # abstract sockets and signals
    attributes = struct.pack("=QQQ", files, network, scope)[: 8 if held < 4 else 16 if held < 6 else 24]
    ruleset = _checked(_libc.syscall(_CREATE, attributes, len(attributes), 0), "landlock_create_ruleset")
    try:
        for path in readable:
            _allow(ruleset, path, _EXECUTE | _READ | _READ_DIR)
        for path in writable:
            _allow(ruleset, path, files)
        _checked(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
        _checked(_libc.syscall(_RESTRICT, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)
    return True


def _allow(ruleset: int, path: Path, rights: int) -> None:
    """Add one folder with what is beneath it, or one file. What does not exist needs no rule."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        rule = struct.pack("=Qi", rights if path.is_dir() else rights & _ON_FILES, fd)
        _checked(_libc.syscall(_ADD, ruleset, _BENEATH, rule, 0), f"landlock_add_rule({path})")
    finally:
        os.close(fd)


def _checked(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result
