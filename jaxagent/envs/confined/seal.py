"""Take every power from a process that it does not need to run Python on data it already holds.

Two steps. `isolate_zygote` runs once, with whatever privileges there are: namespaces, an empty root
directory, an unprivileged user. `seal_child` runs in every child after the fork: resource limits, no new
privileges, and a seccomp filter that refuses (EPERM) every system call but the few that plain computation,
one open pipe and a timer need: no open, socket, fork, exec, kill or ptrace. Each returns the names of the
measures that hold, so that nobody takes a weaker platform for a strong one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import signal
import sys
from collections.abc import Callable

NOBODY = 65534
_NEWUTS, _NEWIPC, _NEWUSER, _NEWNET = 0x04000000, 0x08000000, 0x10000000, 0x40000000
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_ALLOW, _ERRNO_EPERM, _KILL = 0x7FFF0000, 0x00050001, 0x80000000
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (x86_64, aarch64); None where the architecture has no such call
_SYSCALLS: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "lseek": (8, 62), "readv": (19, 65),
    "writev": (20, 66), "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214),
    "mremap": (25, 216), "madvise": (28, 233), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "sigaltstack": (131, 132), "sched_yield": (24, 124), "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115), "getitimer": (36, 102), "setitimer": (38, 103), "getpid": (39, 172),
    "getppid": (110, 173), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176),
    "getegid": (108, 177), "gettid": (186, 178), "exit": (60, 93), "exit_group": (231, 94),
    "gettimeofday": (96, 169), "time": (201, None), "getrlimit": (97, 163), "getrusage": (98, 165),
    "times": (100, 153), "futex": (202, 98), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "restart_syscall": (219, 128), "getrandom": (318, 278), "membarrier": (324, 283), "rseq": (334, 293),
    "uname": (63, 160),
}  # fmt: skip


class _Instruction(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint16),
        ("jt", ctypes.c_uint8),
        ("jf", ctypes.c_uint8),
        ("k", ctypes.c_uint32),
    ]


class _Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction))]


def _seccomp_program() -> _Program | None:
    """The filter for this machine, or None where seccomp or its call table is missing."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _AUDIT_ARCH or sys.maxsize < 2**32:
        return None
    column = list(_AUDIT_ARCH).index(machine)
    numbers = [pair[column] for pair in _SYSCALLS.values()]
    load, equal, at_least, ret = 0x20, 0x15, 0x35, 0x06
    body = [(load, 0, 0, 4), (equal, 1, 0, _AUDIT_ARCH[machine]), (ret, 0, 0, _KILL), (load, 0, 0, 0)]
    body += [(at_least, 0, 1, 0x40000000), (ret, 0, 0, _KILL)]  # the x32 table would be a second door
    for number in numbers:
        if number is not None:
            body += [(equal, 0, 1, number), (ret, 0, 0, _ALLOW)]
    body.append((ret, 0, 0, _ERRNO_EPERM))
    return _Program(len(body), (_Instruction * len(body))(*(_Instruction(*row) for row in body)))


_libc = ctypes.CDLL(None, use_errno=True)
_program = _seccomp_program()


def _succeeds(action: Callable[[], object]) -> bool:
    try:
        return action() in (None, 0)
    except OSError:
        return False


def isolate_zygote(empty_directory: str) -> list[str]:
    """No network, files or privileges for this process and its children, as far as the system lets us."""
    held: list[str] = []
    if sys.platform == "linux":
        if os.geteuid() != 0 and _libc.unshare(_NEWUSER) == 0:
            held.append("user namespace")
        if _libc.unshare(_NEWNET) == 0:
            held.append("network namespace")
        if _libc.unshare(_NEWIPC | _NEWUTS) == 0:
            held.append("ipc namespace")
    if _succeeds(lambda: os.chroot(empty_directory)):
        held.append("empty root")
    os.chdir("/")
    if os.geteuid() == 0 and hasattr(os, "setresuid") and _succeeds(_become_nobody):
        held.append("unprivileged user")
    return held


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def seal_child(*, memory_bytes: int, cpu_s: int) -> list[str]:
    """Irrevocably confine the calling process. `memory_bytes` comes on top of what is mapped now."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    limits = {"RLIMIT_CPU": cpu_s, "RLIMIT_CORE": 0, "RLIMIT_FSIZE": 0, "RLIMIT_AS": _MAPPED + memory_bytes}
    for name, value in limits.items():
        with contextlib.suppress(ValueError, OSError):  # macOS refuses RLIMIT_AS; the others hold everywhere
            resource.setrlimit(getattr(resource, name), (value, value))
    held = ["resource limits"]
    if _program is not None and _install(_program):
        held.append("seccomp")
    else:
        sys.addaudithook(_refuse)
        held.append("audit hook")
    return held


def _install(program: _Program) -> bool:
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    return _libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0) == 0


def _read_mapped() -> int:
    """Bytes of address space in use; must be read while files can still be opened."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 256 << 20


_MAPPED = _read_mapped()

_REFUSED = (
    "open",
    "os.",
    "socket.",
    "subprocess.",
    "shutil.",
    "ctypes.",
    "pty.",
    "sqlite3.",
    "ftplib.",
    "glob.",
)


def _refuse(event: str, args: tuple[object, ...]) -> None:
    """Audit hook of platforms without seccomp: refuses by event; it cannot be removed by Python code."""
    if event.startswith(_REFUSED):
        raise PermissionError(1, f"{event} is not permitted here")
