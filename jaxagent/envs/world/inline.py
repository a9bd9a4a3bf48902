"""Runs trusted agent code in this very process, for demonstrations and tests. Confines nothing.

Same interface and same texts as envs/sandbox.py, without its processes: thousands of steps a second.
"""

from __future__ import annotations

import io
import json
import traceback
from collections.abc import Callable
from typing import Any

from jaxagent.envs.confined.interpreter import FAILED, FILENAME
from jaxagent.envs.sandbox import ApiError, SandboxLimits, SandboxResult
from jaxagent.types import ExecStatus


class _Proxy:
    """`apis`, and below it each app."""

    def __init__(self, resolve: Callable[[str], Any]):
        self._resolve = resolve

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._resolve(name)


class InlineSandbox:
    """A persistent namespace with `apis`; see envs/sandbox.Sandbox for the contract."""

    def __init__(self, api_call: Callable[[str, str, dict[str, Any]], object], *, limits: SandboxLimits):
        def call(app: str, api: str, kwargs: dict[str, Any]) -> Any:
            try:
                return json.loads(json.dumps(api_call(app, api, kwargs)))
            except ApiError as exc:
                raise self._refusal(exc) from None

        def app_proxy(app: str) -> _Proxy:
            return _Proxy(lambda api: lambda **kwargs: call(app, api, kwargs))

        self._short = limits.short_errors
        self._printed = io.StringIO()
        self._namespace: dict[str, Any] = {"apis": _Proxy(app_proxy), "print": self._print}

    def run(self, code: str) -> SandboxResult:
        code = code.strip()
        if not code:
            text = "No code available to execute."
            return SandboxResult(text, text, ExecStatus.INVALID)
        self._printed = io.StringIO()
        try:
            compiled = compile(code, FILENAME, "exec")
        except (SyntaxError, ValueError) as exc:
            line, message = getattr(exc, "text", "") or "", getattr(exc, "msg", str(exc))
            error = f"SyntaxError: {message}"
            long = f"{FAILED}Syntax error in line:\n{line.rstrip()}\nMessage: {message}"
            return SandboxResult(error if self._short else long, error, ExecStatus.SYNTAX_ERROR)
        try:
            exec(compiled, self._namespace)
        except Exception as exc:
            return self._failure(exc, code)
        text = self._printed.getvalue()
        done = "ok" if self._short else "Execution successful."
        return SandboxResult(text if text.strip() else done, "", ExecStatus.OK)

    def close(self) -> None:
        self._namespace.clear()

    def _print(self, *args: Any, **kwargs: Any) -> None:
        if not kwargs and len(args) == 1 and isinstance(args[0], (list, tuple, dict)):
            text = json.dumps(args[0])
            args = (text if len(text) < 100 else json.dumps(args[0], indent=1),)
        print(*args, file=self._printed, **kwargs)

    def _refusal(self, exc: ApiError) -> Exception:
        if self._short:
            return type("ApiError", (Exception,), {"__module__": "builtins"})(
                f"{exc.status_code} {exc.message}"
            )
        return Exception(
            f"Response status code is {exc.status_code}:\n{json.dumps({'message': exc.message})}"
        )

    def _failure(self, exc: Exception, code: str) -> SandboxResult:
        last = "".join(traceback.format_exception_only(exc)).strip()
        if self._short:
            return SandboxResult(last, last, ExecStatus.RUNTIME_ERROR)
        lines, shown = code.splitlines(), ""
        for frame in traceback.extract_tb(exc.__traceback__):
            if frame.filename == FILENAME and frame.lineno:
                shown += f'  File "{FILENAME}", line {frame.lineno}, in {frame.name}\n'
                shown += "".join(f"    {line.strip()}\n" for line in lines[frame.lineno - 1 : frame.lineno])
        return SandboxResult(FAILED + shown + last, last, ExecStatus.RUNTIME_ERROR)
