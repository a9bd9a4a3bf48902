"""A small interpreter with everything imported, which forks one confined child for every episode.

Started by envs/sandbox.py with one inherited socket. Requests on it, one at a time:
    {"fork": options} + one file descriptor -> {"pid": int}       the child serves the descriptor
    {"end": pid}                            -> {"status": int}    kill it, wait for it, give its wait status
The zygote ends when the socket does, and its children with it.
"""

from __future__ import annotations

import contextlib
import encodings.ascii
import encodings.idna
import encodings.latin_1
import encodings.unicode_escape
import encodings.utf_8
import gc
import importlib
import json
import os
import signal
import socket
import traceback
from typing import Any

from . import seal, wire
from .interpreter import MODULES, Interpreter

# Imported late by the standard library itself (strptime, tracebacks); no file can be opened by then.
_LATE = ("_strptime", "urllib.parse", "_pydecimal", "_pydatetime", "ast", "tokenize", "warnings", "locale")


class ApiError(Exception):
    """An API refused the call. Short-text mode shows the name; otherwise a plain Exception is raised."""

    __module__ = "builtins"  # tracebacks then show the bare name


def main(control_fd: int, empty_directory: str) -> None:
    control = socket.socket(fileno=control_fd)
    try:
        for name in (*MODULES, *_LATE):
            with contextlib.suppress(ModuleNotFoundError):  # _pydatetime is newer than 3.11
                importlib.import_module(name)
        held = seal.isolate_zygote(empty_directory)
        gc.collect()
        gc.freeze()
        wire.write(control_fd, wire.frame({"ready": held}))
    except Exception:  # whatever keeps the kernel from sealing this process, the host says it
        wire.write(control_fd, wire.frame({"failed": traceback.format_exc()}))
        return
    serve(control)


def serve(control: socket.socket) -> None:
    """Answer requests until the host goes away."""
    while True:
        data, fds, _, _ = socket.recv_fds(control, 65536, 1)
        if not data:
            return
        request = json.loads(data[wire.HEADER.size :])
        if "end" in request:
            reply: dict[str, Any] = {"status": _end(request["end"])}
        else:
            try:
                pid = os.fork()
            except OSError as exc:
                reply = {"failed": str(exc)}
            else:
                if pid == 0:
                    control.close()
                    _child(fds[0], request["fork"])
                reply = {"pid": pid}
            os.close(fds[0])
        wire.write(control.fileno(), wire.frame(reply))


def _end(pid: int) -> int:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    try:
        return os.waitpid(pid, 0)[1]
    except ChildProcessError:
        return 0


def _child(fd: int, options: dict[str, Any]) -> None:
    """Serve one episode; never returns."""
    try:
        held = seal.seal_child(memory_bytes=options["memory_mb"] << 20, cpu_s=options["total_cpu_s"])
        importlib.import_module("random").seed(options["seed"])
        interpreter = Interpreter(_requester(fd, options), options)
        wire.write(fd, wire.frame({"kind": "ready", "held": held}))
        while (message := wire.read(fd)) is not None:
            if "run" not in message:
                continue  # the answer to an API call whose execution is over
            output, error, status = interpreter.run(message["run"])
            result = {"output": output, "error": error, "status": status}
            wire.write(fd, wire.frame({"kind": "result", "run": message["number"], **result}))
    finally:
        os._exit(0)


def _requester(fd: int, options: dict[str, Any]):
    """The function behind `apis.<app>.<api>(**kw)`: one message out, one in, numbered."""
    number = 0

    def request(app: str, api: str, kwargs: dict[str, Any]) -> Any:
        nonlocal number
        number += 1
        data = wire.frame({"kind": "call", "id": number, "app": app, "api": api, "kwargs": kwargs})
        if len(data) > options["message_bytes"]:
            allowed = options["message_bytes"]
            raise ValueError(
                f"the arguments of apis.{app}.{api} take {len(data)} bytes; {allowed} are allowed"
            )
        wire.write(fd, data)
        while True:
            message = wire.read(fd)
            if message is None:
                os._exit(0)
            if message.get("id") == number:
                break
        if "error" not in message:
            return message["value"]
        if options["short"]:
            raise ApiError(message["error"])
        raise Exception(message["error"])

    return request


# The codecs are used by name, deep inside the standard library.
_ = (encodings.ascii, encodings.idna, encodings.latin_1, encodings.unicode_escape, encodings.utf_8)
