import os
import signal
import subprocess
import sys
from pathlib import Path

from jaxagent.preemption import EXIT_PREEMPTED, Preemption


def test_sigterm_sets_a_flag_and_the_old_handler_comes_back():
    before = signal.getsignal(signal.SIGTERM)
    with Preemption() as preemption:
        assert not preemption.requested
        os.kill(os.getpid(), signal.SIGTERM)
        assert preemption.requested
    assert signal.getsignal(signal.SIGTERM) is before


CHILD = """
import time
from jaxagent.preemption import EXIT_PREEMPTED, Preemption
with Preemption() as preemption:
    print("ready", flush=True)
    while not preemption.requested or {stubborn}:
        time.sleep(0.01)
raise SystemExit(EXIT_PREEMPTED)
"""


def child(stubborn):
    return subprocess.Popen(
        [sys.executable, "-c", CHILD.format(stubborn=stubborn)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )


def test_the_exit_code_is_its_own():
    with child(stubborn=False) as process:
        process.stdout.readline()
        process.terminate()
        assert process.wait(timeout=20) == EXIT_PREEMPTED == 75


def test_a_second_signal_ends_a_loop_that_does_not_listen():
    with child(stubborn=True) as process:
        process.stdout.readline()
        while process.poll() is None:
            process.terminate()
    assert process.returncode == -signal.SIGTERM
