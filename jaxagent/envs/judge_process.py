"""Call a checker that may hang or eat memory on what a model wrote: in a child process that can be killed.

`9**9**9**9` keeps sympy's C code busy for ever and no signal handler runs in between; the time-out must come from
outside. One child a process and checker, started at the first call, replaced when it is lost. The child is no sandbox:
checkers are trusted code, only their running time and memory are not.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxagent.errors import EnvFailure

START_S = 60.0  # the child's imports; sympy alone takes seconds on a busy machine
MAX_LINE = 1 << 20
_BOOT = "import sys; sys.path[:] = {path!r}; from jaxagent.envs import judge_child; judge_child.main({target!r}, {mb})"


@dataclass(frozen=True)
class Answer:
    """value: what the checker returned. fault: "" | "raised" | "hang" | "died"; message: what it said then."""

    value: Any = None
    fault: str = ""
    message: str = ""


class JudgeProcess:
    """Owner of one child that calls `target` ("package.module:function") with JSON values."""

    def __init__(self, target: str, *, memory_mb: int = 2048):
        self._target, self._memory_mb = target, memory_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._buffer = b""

    def call(self, arguments: Sequence[Any], *, seconds: float) -> Answer:
        """The checker's answer. A child that dies is tried once more: it may have been killed while it idled."""
        request = json.dumps(list(arguments)).encode() + b"\n"
        for attempt in (0, 1):
            process = self._alive()
            try:
                assert process.stdin is not None
                process.stdin.write(request)
                process.stdin.flush()
                reply = self._line(process, time.monotonic() + seconds)
            except TimeoutError:
                self.close()
                return Answer(fault="hang", message=f"the checker took more than {seconds:g} s")
            except (OSError, ValueError, EOFError) as exc:
                self.close()
                if attempt:
                    return Answer(fault="died", message=f"the checker's process ended: {exc}")
            else:
                if "raised" in reply:
                    return Answer(fault="raised", message=str(reply["raised"]))
                return Answer(value=reply["value"])
        raise AssertionError("unreachable: the second attempt returns")

    def close(self) -> None:
        """End the child. A later call starts a new one."""
        process, self._process, self._buffer = self._process, None, b""
        if process is not None and self._owner == os.getpid():  # a forked copy does not own it
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return self._process
        self.close()
        path = [entry or os.getcwd() for entry in sys.path]
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT.format(path=path, target=self._target, mb=self._memory_mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, **threads, "PYTHONHASHSEED": "0"},  # generators that iterate over sets of text
        )
        self._process, self._owner = process, os.getpid()
        try:
            ready = self._line(process, time.monotonic() + START_S)
        except (TimeoutError, EOFError, ValueError) as exc:
            self.close()
            raise EnvFailure("raised", f"the checker {self._target} does not start: {exc}") from exc
        if "raised" in ready:
            self.close()
            raise EnvFailure("raised", f"the checker {self._target} does not start: {ready['raised']}")
        return process

    def _line(self, process: subprocess.Popen[bytes], end: float) -> dict[str, Any]:
        """The child's next line. Raises TimeoutError, EOFError, or ValueError for what is no JSON object."""
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(end - time.monotonic(), 0)):
                    raise TimeoutError("no answer in time")
                part = os.read(process.stdout.fileno(), 65536)
                if not part:
                    raise EOFError("it closed its pipe")
                self._buffer += part
                if len(self._buffer) > MAX_LINE:
                    raise ValueError("its answer is too long")
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply = json.loads(line)
        if not isinstance(reply, dict):
            raise ValueError(f"its answer is {type(reply).__name__}")
        return reply


_judges: dict[str, JudgeProcess] = {}


def judge(target: str, arguments: Sequence[Any], *, seconds: float) -> Answer:
    """`target`'s answer, from this process's child for it."""
    if target not in _judges:
        _judges[target] = JudgeProcess(target)
        atexit.register(_judges[target].close)
    return _judges[target].call(arguments, seconds=seconds)
