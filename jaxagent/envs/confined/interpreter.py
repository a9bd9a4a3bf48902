"""The agent's Python: one persistent namespace, `apis.<app>.<api>(**kw)`, and AppWorld's message texts.

Code comes in, `(output, error, exec_status)` goes out. API calls leave through the `request` function and are
answered by the host. Confinement is not this file's job (seal.py): the import list here only gives clear
messages, the walls are the kernel's.
"""

from __future__ import annotations

import builtins
import json
import linecache
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

FILENAME = "<python-input>"
FAILED = "Execution failed. Traceback:\n"
_NAMES = """
    abc array base64 bisect calendar cmath collections collections.abc contextlib copy csv dataclasses
    datetime decimal difflib enum fractions functools hashlib heapq hmac html io itertools json keyword math
    numbers operator pprint random re secrets statistics string struct textwrap time types typing unicodedata
    urllib.parse uuid
"""
MODULES = tuple(_NAMES.split())
_PACKAGES = frozenset(MODULES) | {"urllib", "_strptime", "__future__"}


class OutOfTime(BaseException):
    """Raised into the agent's code by the timer; a BaseException, so that `except Exception` lets it pass."""


class Printed:
    """Standard output of one execution; keeps the first `limit` characters and counts the rest."""

    encoding = "utf-8"

    def __init__(self, limit: int):
        self.limit, self.parts, self.kept, self.lost = limit, [], 0, 0

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        part = text[: self.limit - self.kept]
        if part:
            self.parts.append(part)
        self.kept += len(part)
        self.lost += len(text) - len(part)
        return len(text)

    def flush(self) -> None:
        """Nothing is buffered."""

    def text(self) -> str:
        marker = f"\n[output cut: {self.lost} more characters]" if self.lost else ""
        return "".join(self.parts) + marker


class _App:
    def __init__(self, name: str, request: Callable[[str, str, dict[str, Any]], Any]):
        self._name, self._request = name, request

    def __getattr__(self, api: str) -> Callable[..., Any]:
        if api.startswith("__"):
            raise AttributeError(api)
        app, request = self._name, self._request

        def call(*args: Any, **kwargs: Any) -> Any:
            if args:
                raise TypeError(f"apis.{app}.{api}() takes keyword arguments only")
            return request(app, api, kwargs)

        return call


class _Apis:
    def __init__(self, request: Callable[[str, str, dict[str, Any]], Any]):
        self._request = request

    def __getattr__(self, app: str) -> _App:
        if app.startswith("__"):
            raise AttributeError(app)
        return _App(app, self._request)


class Interpreter:
    """Owner of one episode's namespace, its timers and its captured output."""

    def __init__(self, request: Callable[[str, str, dict[str, Any]], Any], options: dict[str, Any]):
        self._request, self._options = request, options
        self._live = False  # agent code is running: the timer may raise
        self._calling = False  # a message is in flight: raising now would cut it in half
        self._late = False
        self._count = 0
        self.namespace: dict[str, Any] = {
            "__name__": "__main__",
            "__builtins__": _agent_builtins(),
            "apis": _Apis(self._call),
        }
        warnings.simplefilter("ignore")
        for number in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(number, self._on_timer)

    def run(self, code: str) -> tuple[str, str, str]:
        code = code.strip()
        if not code:
            return "No code available to execute.", "No code available to execute.", "invalid"
        try:
            compiled = compile(code, FILENAME, "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as exc:
            return self._syntax_error(exc)
        self._count += 1
        lines = f"{code}\n".splitlines(keepends=True)  # carets are misplaced under a line without its newline
        linecache.cache[FILENAME] = (len(code), None, lines, FILENAME)
        printed = Printed(self._options["output_chars"])
        sys.stdout, sys.stderr = printed, Printed(0)  # type: ignore[assignment]
        try:
            failure = self._execute(compiled)
        finally:
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        if failure is not None:
            return failure
        text = printed.text()
        return (text if text.strip() else self._say("Execution successful.", "ok")), "", "ok"

    def _execute(self, compiled: Any) -> tuple[str, str, str] | None:
        """Run under the timers. None is success; the failure's text is built under the timers too."""
        self._late, self._live = False, True
        signal.setitimer(signal.ITIMER_REAL, self._options["wall_s"], 0.25)
        signal.setitimer(signal.ITIMER_PROF, self._options["cpu_s"], 0.25)
        try:
            try:
                exec(compiled, self.namespace)
                return None
            except OutOfTime:
                return self._out_of_time()
            except BaseException as exc:
                return self._runtime_error(exc)
            finally:
                self._live = False
        except OutOfTime:  # raised while the failure was being described, or just after the code had ended
            return self._out_of_time()
        finally:
            self._live = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _on_timer(self, number: int, frame: object) -> None:
        self._late = True
        if self._live and not self._calling:
            raise OutOfTime

    def _call(self, app: str, api: str, kwargs: dict[str, Any]) -> Any:
        self._calling = True
        try:
            return self._request(app, api, kwargs)
        finally:
            self._calling = False
            if self._late and self._live:
                raise OutOfTime

    def _say(self, long: str, short: str) -> str:
        return short if self._options["short"] else long

    def _out_of_time(self) -> tuple[str, str, str]:
        error = f"Execution timed out after {self._options['wall_s']:g} seconds."
        return self._say(FAILED + error, "TimeoutError: timed out"), error, "timeout"

    def _syntax_error(self, exc: BaseException) -> tuple[str, str, str]:
        message = (exc.msg if isinstance(exc, SyntaxError) else str(exc)) or "invalid syntax"
        line = (exc.text or "").rstrip() if isinstance(exc, SyntaxError) else ""
        error = f"SyntaxError: {message}"
        return (
            self._say(f"{FAILED}Syntax error in line:\n{line}\nMessage: {message}", error),
            error,
            "syntax_error",
        )

    def _runtime_error(self, exc: BaseException) -> tuple[str, str, str]:
        limit = self._options["output_chars"]
        described = traceback.TracebackException.from_exception(exc, limit=-100)
        _keep_agent_frames(described)
        last = "".join(described.format_exception_only()).strip()[:limit]
        if self._options["short"]:
            return last, last[:2000], "runtime_error"
        lines = "".join(described.format(chain=True)).removeprefix("Traceback (most recent call last):\n")
        return FAILED + lines.rstrip()[-limit:], last[:2000], "runtime_error"


def _keep_agent_frames(described: traceback.TracebackException) -> None:
    """Drop frames of the sandbox and of library code, in the whole chain of exceptions."""
    seen: set[int] = set()
    waiting = [described]
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        item.stack[:] = [frame for frame in item.stack if frame.filename == FILENAME]
        waiting += [link for link in (item.__cause__, item.__context__) if link is not None]


def _agent_builtins() -> dict[str, Any]:
    """The builtins with AppWorld's `print` and `input`, without files, with a list of importable modules."""

    def show(*args: Any, **kwargs: Any) -> None:
        if not kwargs and len(args) == 1 and isinstance(args[0], (list, tuple, dict)):
            try:
                text = json.dumps(args[0])
                builtins.print(text if len(text) < 100 else json.dumps(args[0], indent=1))
                return
            except (TypeError, ValueError):
                pass  # not JSON (a set inside, a cycle): print it the ordinary way below
        builtins.print(*args, **kwargs)

    def ask(*args: Any, **kwargs: Any) -> NoReturn:
        raise Exception("input(..) is not allowed. All decisions must be made autonomously.")

    def no_file(*args: Any, **kwargs: Any) -> NoReturn:
        raise PermissionError("open(..) is not allowed: there are no files here.")

    def import_listed(name: str, *args: Any, **kwargs: Any) -> Any:
        if name not in _PACKAGES:
            raise ImportError(f"module {name!r} is not available here")
        return builtins.__import__(name, *args, **kwargs)

    own = {"print": show, "input": ask, "open": no_file, "__import__": import_listed}
    return {**vars(builtins), **own}
