"""Train on this machine or, started once on every host, on a whole TPU slice.

    python launch/tpu_run.py [RUN.yaml] [key=value ...]

Without arguments it trains the quickstart, which needs no TPU. On a multi-host slice start the same command on
all hosts (`gcloud compute tpus tpu-vm ssh NAME --worker=all --command=...`); hosts find each other by themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from jaxagent.cli import QUICKSTART, main  # noqa: E402


def command(arguments: Sequence[str]) -> list[str]:
    """`tpu_run.py key=value` without a run file means the quickstart with overrides."""
    run_given = bool(arguments) and "=" not in arguments[0]
    return ["train", *([] if run_given else [str(QUICKSTART)]), *arguments]


if __name__ == "__main__":
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(__doc__)
        sys.exit(0)
    sys.exit(main(command(sys.argv[1:])))
