"""What a result must carry so that it can be traced: the commit it ran on."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit() -> str:
    """The checkout's commit, "-dirty" if files differ from it; "unknown" outside a checkout.

    Installed into another project's folder, this file is none of that repository's, whose commit says nothing.
    """
    try:
        _git("ls-files", "--error-unmatch", Path(__file__).name)
        return _git("describe", "--always", "--dirty", "--abbrev=12")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
