"""A run that collapses: python -m tests.e2e.collapsing HOW WHEN run.yaml key=value …

HOW   entropy: from its third iteration on, a stage at its full learning rate reports the entropy of a policy that is
      lost.   always: whatever the learning rate.   error: the third update raises DivergenceError instead.
WHEN  never, or what kills the process (SIGKILL) in the middle of a rollback: before its checkpoint is written or after.
"""

import os
import signal
import sys

from jaxagent.checkpoint import Checkpointer
from jaxagent.cli import main
from jaxagent.errors import DivergenceError
from jaxagent.learner import Learner

LEARNING_RATE = 1e-3


def collapse(how):
    update = Learner.update

    def collapsing(self, samples, *, seed):
        metrics = update(self, samples, seed=seed)
        full = self.stage.update.learning_rate == LEARNING_RATE or how == "always"
        if not full or seed[2] < 2:
            return metrics
        if how == "error":
            raise DivergenceError("made to diverge")
        return {**metrics, "policy/entropy": 1e-6}

    Learner.update = collapsing


def kill(when):
    save = Checkpointer.save

    def killing(self, step, device_state, host_state):
        back = any(item["saved"] == step for item in host_state["rollbacks"])
        if back and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        save(self, step, device_state, host_state)
        if back and when == "after":
            self.wait()
            os.kill(os.getpid(), signal.SIGKILL)

    if when != "never":
        Checkpointer.save = killing


if __name__ == "__main__":
    collapse(sys.argv[1])
    kill(sys.argv[2])
    raise SystemExit(main(["train", *sys.argv[3:]]))
