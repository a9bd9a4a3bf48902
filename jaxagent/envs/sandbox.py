"""Run agents' Python where it can reach nothing but the APIs of its own episode.

In: code, and a function that answers API calls in this process. Out: an observation with AppWorld's texts.
The code runs in a child process forked from a small zygote (confined/): no network, no files, no other
process, no evaluator or solution in its memory. Whatever the child does (hang, die, flood, forge messages)
ends as a `SandboxResult`; only an exception of `api_call` other than `ApiError`, which is a fault of the
environment, gets out of `Sandbox.run`.

On platforms without seccomp (macOS) the walls are resource limits and an audit hook, which a determined
program can climb; `Sandbox.confinement` names the measures that hold.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from jaxagent.envs.channel import Channel, ChildGone
from jaxagent.envs.confined import wire
from jaxagent.envs.confined.interpreter import FAILED
from jaxagent.envs.zygote_client import Zygote, ZygoteError, current_zygote
from jaxagent.types import ExecStatus

ApiCall = Callable[[str, str, dict[str, Any]], object]
"""(app, api, keyword arguments) -> JSON-serialisable answer. Raises ApiError to refuse."""

RESTARTED = "The Python interpreter was restarted: all variables are lost."
_STATUSES = {status.value for status in ExecStatus}


class ApiError(Exception):
    """An API refuses a call. The agent's traceback ends with the status code and the message.

    status_code None: the message alone ("No app named 'x' found.").
    """

    def __init__(self, status_code: int | None, message: str):
        super().__init__(message)
        self.status_code, self.message = status_code, message


@dataclass(frozen=True)
class SandboxLimits:
    """What one execution may use.

    wall_s, cpu_s: the code is interrupted (variables survive); a code that resists is killed grace_s later.
    total_cpu_s:   of the child's whole life, enforced by the kernel.
    output_chars:  printed characters kept; the rest is counted and cut with a marker.
    api_calls:     of one execution.
    message_bytes: of one API call's arguments, and of its answer.
    short_errors:  "ok" and "TypeError: …" instead of AppWorld's texts, for models with tiny contexts.
    """

    wall_s: float = 30.0
    cpu_s: float = 10.0
    grace_s: float = 1.0
    total_cpu_s: int = 600
    memory_mb: int = 256
    output_chars: int = 100_000
    api_calls: int = 1000
    message_bytes: int = 8 << 20
    short_errors: bool = False


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """output: the observation. error: the failure's last line, "" if none. restarted: variables were lost."""

    output: str
    error: str
    exec_status: ExecStatus
    restarted: bool = False


class Sandbox:
    """Owner of one confined child. Not thread-safe; use one for each episode."""

    def __init__(self, api_call: ApiCall, *, limits: SandboxLimits | None = None, seed: int = 0):
        self._api_call, self._limits, self._seed = api_call, limits or SandboxLimits(), seed
        self._zygote: Zygote | None = None
        self._channel: Channel | None = None
        self._pid = 0
        self._runs = 0
        self.confinement: tuple[str, ...] = ()
        self._start()

    def run(self, code: str) -> SandboxResult:
        """Execute in the persistent namespace."""
        channel = self._channel or self._start()
        self._runs += 1
        deadline = time.monotonic() + self._limits.wall_s + self._limits.grace_s
        try:
            channel.send({"run": code, "number": self._runs}, deadline)
            return self._converse(channel, deadline)
        except ChildGone as gone:
            return self._lost(gone)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the child. A later `run` starts a fresh one."""
        self._end()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> Channel:
        limits = self._limits
        options = {**asdict(limits), "short": limits.short_errors, "seed": self._seed}
        for attempt in (0, 1):
            zygote = current_zygote()
            try:
                self._pid, end = zygote.fork(options)
                largest = max(limits.message_bytes, 16 * limits.output_chars)
                self._zygote, self._channel = zygote, Channel(end, largest=largest)
                ready = self._channel.receive(time.monotonic() + 10)
                self.confinement = (*zygote.held, *(str(name) for name in ready.get("held", ())))
                return self._channel
            except (ZygoteError, ChildGone) as exc:
                zygote.close()  # current_zygote() makes a new one
                self._channel = None
                if attempt:
                    raise RuntimeError(f"no confined interpreter could be started: {exc}") from exc
        raise AssertionError("unreachable: the second attempt returns or raises")

    def _end(self) -> int:
        """Kill and reap the child; its wait status (0 if unknown)."""
        channel, zygote, self._channel, self._zygote = self._channel, self._zygote, None, None
        if channel is None or zygote is None:
            return 0
        channel.close()
        try:
            return zygote.end(self._pid)
        except ZygoteError:
            zygote.close()
            return 0

    def _converse(self, channel: Channel, deadline: float) -> SandboxResult:
        """Answer API calls until the result comes."""
        calls = 0
        while True:
            message = channel.receive(deadline)
            if message.get("kind") == "call":
                calls += 1
                channel.send(self._answer(message, calls), deadline)
            elif message.get("run") == self._runs:
                return self._result(message)
            elif not isinstance(message.get("run"), int):  # older numbers: the agent had forged a result
                raise ChildGone("forged", "a message of no known kind")

    def _answer(self, message: Mapping[str, Any], calls: int) -> dict[str, Any]:
        app, api, kwargs, number = (message.get(key) for key in ("app", "api", "kwargs", "id"))
        if not (
            isinstance(app, str) and isinstance(api, str) and isinstance(kwargs, dict) and type(number) is int
        ):
            raise ChildGone("forged", "an API call of the wrong form")
        if calls > self._limits.api_calls:
            limit = self._limits.api_calls
            return {"id": number, "error": f"Maximum number of API calls in one execution ({limit}) reached."}
        try:
            value = self._api_call(app, api, kwargs)
        except ApiError as exc:
            return {"id": number, "error": self._refusal(exc)}
        reply = {"id": number, "value": value}
        if len(wire.frame(reply)) > self._limits.message_bytes:
            return {"id": number, "error": f"The answer of {app}.{api} is too long; ask for less of it."}
        return reply

    def _refusal(self, exc: ApiError) -> str:
        if exc.status_code is None:
            return exc.message
        if self._limits.short_errors:
            return f"{exc.status_code} {exc.message}"
        return f"Response status code is {exc.status_code}:\n{json.dumps({'message': exc.message})}"

    def _result(self, message: Mapping[str, Any]) -> SandboxResult:
        output, error, status = (message.get(key) for key in ("output", "error", "status"))
        if not (isinstance(output, str) and isinstance(error, str) and status in _STATUSES):
            raise ChildGone("forged", "a result of the wrong form")
        limit = self._limits.output_chars + 1000
        return SandboxResult(output[:limit], error[:limit], ExecStatus(status))

    def _lost(self, gone: ChildGone) -> SandboxResult:
        """The child is no more, or must not live on: say so, and what it means for the variables."""
        wait_status = self._end()
        if gone.kind == "hung":
            status = ExecStatus.TIMEOUT
            error = f"Execution timed out after {self._limits.wall_s:g} seconds."
        else:
            status = ExecStatus.RUNTIME_ERROR
            error = f"The Python interpreter died ({_cause(gone, wait_status)})."
        if self._limits.short_errors:
            name = "TimeoutError" if gone.kind == "hung" else "SystemError"
            output = f"{name}: python restarted, variables lost"
        else:
            output = f"{FAILED}{error}\n{RESTARTED}"
        return SandboxResult(output, error, status, restarted=True)


def _cause(gone: ChildGone, wait_status: int) -> str:
    if gone.kind == "forged":
        return f"protocol violated: {gone}"
    if os.WIFSIGNALED(wait_status) and os.WTERMSIG(wait_status) != signal.SIGKILL:
        return signal.Signals(os.WTERMSIG(wait_status)).name
    return str(gone)
