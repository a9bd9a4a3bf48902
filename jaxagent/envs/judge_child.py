"""The child of judge_process.py: reads argument lists from stdin, one JSON array a line, and answers one object a line.

{"value": …} is what the function returned, {"raised": text} that it raised. What the function prints goes nowhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(target: str, memory_mb: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        module, _, name = target.partition(":")
        function = getattr(importlib.import_module(module), name)
        with contextlib.suppress(ValueError, OSError):  # macOS refuses RLIMIT_AS
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, hard))
        answers.write('{"ready": true}\n')
    except Exception as exc:
        answers.write(json.dumps({"raised": f"{type(exc).__name__}: {exc}"}) + "\n")
        return
    for line in sys.stdin:
        answer, full = _answer(function, json.loads(line))
        answers.write(answer + "\n")
        if full:  # what filled the memory may still be held somewhere; the next text gets a fresh process
            return


def _answer(function, arguments: list) -> tuple[str, bool]:
    """The line that answers, and whether the memory was exhausted."""
    try:
        return json.dumps({"value": function(*arguments)}, allow_nan=False), False
    except (
        Exception,
        SystemExit,
    ) as exc:  # whatever the text made the checker do, the next one is judged again
        return json.dumps({"raised": f"{type(exc).__name__}: {exc}"[:2000]}), isinstance(exc, MemoryError)
