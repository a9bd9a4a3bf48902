"""The second start happens once, only where it helps, and leaves nothing behind for child processes."""

import errno
import os
import subprocess
import sys
from pathlib import Path

from jaxagent.huge_pages import ASKED, POLICY, ask_for_huge_pages, started_again

MADVISE = "always [madvise] never\n"


def test_asks_once_and_cleans_up():
    environ = {"HOME": "/root"}
    again = started_again(environ, MADVISE)
    assert again == {"HOME": "/root", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", ASKED: ""}
    assert started_again(again, MADVISE) is None
    assert again == environ


def test_keeps_other_tunables_and_a_choice_of_the_user():
    again = started_again({"GLIBC_TUNABLES": "glibc.malloc.check=1"}, MADVISE)
    assert again is not None
    assert again["GLIBC_TUNABLES"] == "glibc.malloc.check=1:glibc.malloc.hugetlb=1"
    assert started_again(again, MADVISE) is None
    assert again == {"GLIBC_TUNABLES": "glibc.malloc.check=1"}
    assert started_again({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, MADVISE) is None


def test_other_policies_need_nothing():
    for policy in ("[always] madvise never", "always madvise [never]", ""):
        assert started_again({}, policy) is None


def test_a_start_that_cannot_be_made_again_goes_on(monkeypatch):
    """A kernel file that may not be read, an interpreter that is gone: pages of 4 KiB are no reason to fail."""

    def refused(*_):
        raise OSError(errno.E2BIG, "Argument list too long")

    class Unreadable:
        def is_file(self):
            return True

        def read_text(self):
            raise PermissionError(errno.EACCES, "Permission denied")

    class Asks(Unreadable):
        def read_text(self):
            return MADVISE

    monkeypatch.setattr(os, "execve", refused)
    for policy in (Unreadable(), Asks()):
        monkeypatch.setattr("jaxagent.huge_pages.POLICY", policy)
        before = dict(os.environ)
        ask_for_huge_pages()
        assert dict(os.environ) == before


def test_what_a_user_gives_under_our_name_is_no_tunable(monkeypatch):
    """Only the second start finds the tunable beside the name."""
    environ = {ASKED: "0", "HOME": "/root"}
    again = started_again(environ, MADVISE)
    assert again == {"HOME": "/root", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", ASKED: ""}


def test_a_program_keeps_its_arguments_and_process(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\nfrom jaxagent.huge_pages import ask_for_huge_pages\nprint('start', flush=True)\n"
        "ask_for_huge_pages()\nprint(os.getpid(), sys.argv[1:], os.environ.get('GLIBC_TUNABLES'))\n"
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    env.pop("GLIBC_TUNABLES", None)
    child = subprocess.Popen(
        [sys.executable, program, "a", "b c"], stdout=subprocess.PIPE, text=True, env=env
    )
    printed = child.communicate(timeout=60)[0].splitlines()
    starts = 2 if POLICY.is_file() and "[madvise]" in POLICY.read_text() else 1
    assert printed == ["start"] * starts + [f"{child.pid} ['a', 'b c'] None"]
