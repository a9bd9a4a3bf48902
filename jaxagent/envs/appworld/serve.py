"""The program that AppWorld's own Python runs: a server that forks a process for each world and each verdict.

The server imports AppWorld and opens one world to fill its caches (seconds), and from then on runs nothing: an
episode starts from the same clean state however many came before. On its control socket come one byte and one
descriptor for each fork; a fork serves that descriptor with frames of envs/confined/wire.py:

    <- {"pid": …}
    {"world": request}  <- opening;  then {"execute": code} <- answer, again and again
    {"evaluate": {"task_id", "experiment"}}  <- verdict

A fault is answered with {"failed": traceback}. The server ends when the control socket does, its forks with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import shutil
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from jaxagent.envs.appworld.world import World, cut
from jaxagent.envs.confined import wire

_PR_SET_PDEATHSIG = 1
WARM = "warm-up"  # experiment name of the first world, which is thrown away


def main(control_fd: int, scratch: str) -> None:
    """Serve until the host goes away. `scratch` is a folder of this server alone, removed at the end."""
    control = socket.socket(fileno=control_fd)
    try:
        _warm()
        wire.write(control_fd, wire.frame({"ready": True}))
    except Exception:  # whatever the package raises, the host says it
        wire.write(control_fd, wire.frame({"failed": traceback.format_exc()}))
        return
    try:
        _accept(control)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _warm() -> None:
    """Open and close a world: imports, API documentation and the base databases stay in memory."""
    appworld = importlib.import_module("appworld")
    importlib.import_module("appworld.evaluator")
    paths = importlib.import_module("appworld.common.path_store").path_store
    first = min(os.listdir(os.path.join(paths.data, "tasks")))
    experiment = f"{WARM}-{os.getpid()}"
    appworld.AppWorld(task_id=first, experiment_name=experiment, load_ground_truth=False).close()
    appworld.AppWorld.close_all()
    shutil.rmtree(os.path.join(paths.experiment_outputs, experiment), ignore_errors=True)
    gc.collect()
    gc.freeze()


def _accept(control: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks are reaped by the kernel
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        with contextlib.suppress(OSError):  # no process to be had: the host reads the end of the stream
            if os.fork() == 0:
                _fork_main(control, descriptors[0])
        for descriptor in descriptors:
            os.close(descriptor)


def _fork_main(control: socket.socket, descriptor: int) -> None:
    """All that a fork does; never returns to the server's loop."""
    try:
        control.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        _converse(descriptor)
    except BrokenPipeError:
        pass  # the host closed the episode while this process was writing
    finally:
        os._exit(0)


def _converse(descriptor: int) -> None:
    wire.write(descriptor, wire.frame({"pid": os.getpid()}))
    world: World | None = None
    while (request := wire.read(descriptor)) is not None:
        try:
            if "world" in request:
                world = World(request["world"])
                answer = world.opening()
            elif "execute" in request and world is not None:
                answer = world.execute(request["execute"])
            else:
                answer = _verdict(**request["evaluate"])
        except Exception:  # whatever the package raises costs this episode and not the world's process
            answer = {"failed": traceback.format_exc(limit=-20)[-4000:]}
        wire.write(descriptor, wire.frame(answer))


def _verdict(task_id: str, experiment: str) -> dict[str, Any]:
    """The official evaluation of what a world saved; the report is written beside it."""
    evaluator = importlib.import_module("appworld.evaluator")
    tracker = evaluator.evaluate_task(task_id, experiment_name=experiment)
    return {
        "success": bool(tracker.success),
        "passed": tracker.pass_count,
        "total": tracker.num_tests,
        "failures": [cut(failure["requirement"]) for failure in tracker.failures],
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), str(Path(sys.argv[2])))
