"""Large pages for host memory: the process starts again once, with the allocator told to ask for them.

XLA's CPU backend takes fresh memory for every call, and a page fault for each 4 KiB of it costs a tenth of an update
and a quarter of the decode calls that copy their slots. Linux gives pages of 2 MiB to programs that ask
(transparent_hugepage is "madvise" almost everywhere), and glibc asks if a tunable says so. It reads the tunable
before `main`: hence a second start rather than a call. Nothing is done on other systems, or where the kernel gives
them to everybody ("always") or nobody ("never").
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")
TUNABLE = "glibc.malloc.hugetlb"
ASKED = "JAXAGENT_HUGE_PAGES"  # set across the second start only


def ask_for_huge_pages() -> None:
    """Call first of all in a program: may replace the process by itself. Child processes are not affected.

    Where the kernel's answer cannot be read, or no second start be made, the program goes on: it is only slower.
    """
    with contextlib.suppress(OSError):
        settings = started_again(os.environ, POLICY.read_text() if POLICY.is_file() else "")
        if settings is not None and sys.executable:
            sys.stdout.flush()
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], settings)


def started_again(environ: MutableMapping[str, str], policy: str) -> dict[str, str] | None:
    """The environment to start again with; None to go on, with what was set for this process alone removed."""
    tunables = environ.get("GLIBC_TUNABLES", "")
    before = environ.pop(ASKED, None)
    if before is not None and tunables == _asking(before):
        environ.pop("GLIBC_TUNABLES")
        if before:
            environ["GLIBC_TUNABLES"] = before
        return None
    if "[madvise]" not in policy or TUNABLE in tunables:
        return None
    return {**environ, "GLIBC_TUNABLES": _asking(tunables), ASKED: tunables}


def _asking(tunables: str) -> str:
    """These tunables, and that for large pages."""
    return ":".join(filter(None, [tunables, f"{TUNABLE}=1"]))
