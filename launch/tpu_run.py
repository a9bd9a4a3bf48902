"""Train on this machine: `jaxagent train` without an installed command.

    python launch/tpu_run.py [RUN.yaml] [key=value ...]

Without a run file it trains the quickstart, which needs no TPU. One host; a slice of several is refused.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from jaxagent.cli import main  # noqa: E402
from jaxagent.huge_pages import ask_for_huge_pages  # noqa: E402

if __name__ == "__main__":
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(__doc__)
        sys.exit(0)
    ask_for_huge_pages()
    sys.exit(main(["train", *sys.argv[1:]]))
