"""Large pages for host memory: the process starts again once, with the allocator told to ask for them.

XLA's CPU backend takes fresh memory for every call, and a page fault for each 4 KiB of it costs a tenth of an update
and a quarter of the decode calls that copy their slots. Linux gives pages of 2 MiB to programs that ask
(transparent_hugepage is "madvise" almost everywhere), and glibc asks if a tunable says so. It reads the tunable
before `main`: hence a second start rather than a call. Nothing is done on other systems, or where the kernel gives
them to everybody ("always") or nobody ("never").
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")
TUNABLE = "glibc.malloc.hugetlb"
ASKED = "JAXAGENT_HUGE_PAGES"  # set across the second start only


def ask_for_huge_pages() -> None:
    """Call first of all in a program: may replace the process by itself. Child processes are not affected."""
    settings = started_again(os.environ, POLICY.read_text() if POLICY.is_file() else "")
    if settings is not None:
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], settings)


def started_again(environ: MutableMapping[str, str], policy: str) -> dict[str, str] | None:
    """The environment to start again with; None to go on, with what was set for this process alone removed."""
    before = environ.pop(ASKED, None)
    if before is not None:
        environ.pop("GLIBC_TUNABLES", None)
        if before:
            environ["GLIBC_TUNABLES"] = before
        return None
    tunables = environ.get("GLIBC_TUNABLES", "")
    if "[madvise]" not in policy or TUNABLE in tunables:
        return None
    asked = ":".join(filter(None, [tunables, f"{TUNABLE}=1"]))
    return {**environ, "GLIBC_TUNABLES": asked, ASKED: tunables}
