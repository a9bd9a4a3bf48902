"""A run that notes what it learnt from: python -m tests.e2e.observing FILE run.yaml key=value …

FILE gets one JSON line an iteration, when its groups have been learnt from: task, rollouts kept and dropped of each.
"""

import json
import sys
from pathlib import Path

from jaxagent.cli import main
from jaxagent.data.tasks import TaskSource


def observe_into(path):
    observe = TaskSource.observe

    def noting(self, groups):
        seen = [[group.task.task_id, len(group.trajectories), len(group.dropped)] for group in groups]
        with Path(path).open("a") as file:
            file.write(json.dumps(seen) + "\n")
        return observe(self, groups)

    TaskSource.observe = noting


if __name__ == "__main__":
    observe_into(sys.argv[1])
    raise SystemExit(main(["train", *sys.argv[2:]]))
