"""Run unit tests against untrusted code so that the code can neither read nor forge them.

Two confined children (sandbox.py). The judge's holds the tests; where they call the function under test, it asks this
process, which has the candidate's child call it. Only plain values cross, as tagged JSON:

    judge: assert add(2, 3) == 5   ->  call add, args [2, 3]  ->  candidate: add(2, 3)   ->  value 5   ->  judge: 5 == 5

The expected values, the `assert` that runs and the count of passes are in memory that the candidate's process does not
share: exiting, printing a mark, replacing `assert`, overriding `__eq__` or forging messages changes nothing but the
value that comes back, and an object that is no plain value does not come back at all. What tests cannot see so: changes
that a function makes to its arguments, and objects of the candidate's own classes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from jaxagent.envs.sandbox import ApiError, Sandbox, SandboxLimits, SandboxResult
from jaxagent.records import Record

MAX_NUMBER = 1 << 20  # characters of one number that crosses; the whole message is bounded by the sandbox
OWN_NAMES = ("_pack", "_unpack", "_answer", "_ENDS", "apis")  # of the judge's namespace
SHOWN_CHARS = 300  # of an error in a failure's text

VALUES = """
def _pack(value):
    kind = type(value)
    if value is None or kind in (bool, str) or kind is int and abs(value) < 1 << 53:
        return value
    if kind in (int, float, complex):
        return {"n": kind.__name__, "v": repr(value) if kind is not int else hex(value)}
    if kind is bytes:
        return {"b": value.hex()}
    if kind in (list, tuple, set, frozenset):
        return {"s": kind.__name__, "v": [_pack(item) for item in value]}
    if kind is dict:
        return {"d": [[_pack(key), _pack(item)] for key, item in value.items()]}
    raise TypeError("only plain values (numbers, text, lists, tuples, sets, dicts) cross, not " + kind.__name__)

def _unpack(data):
    if type(data) is not dict:
        return data
    if "n" in data:
        if data["n"] == "int":
            return int(data["v"], 16)
        return {"float": float, "complex": complex}[data["n"]](data["v"])
    if "b" in data:
        return bytes.fromhex(data["b"])
    if "d" in data:
        return {_unpack(key): _unpack(item) for key, item in data["d"]}
    items = [_unpack(item) for item in data["v"]]
    return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[data["s"]](items)
"""

PROXY = """
_ENDS = (StopIteration, StopAsyncIteration)  # `all(map(f, xs))` would take one for the end of xs, and pass
def {name}(*args, **kwargs):
    answer = apis.candidate.call(arguments=_pack([args, kwargs]))
    if "raised" in answer:
        kind = __builtins__.get(answer["raised"])
        known = isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _ENDS)
        raise (kind if known else RuntimeError)(answer["message"])
    return _unpack(answer["value"])
candidate = {name}
"""

CALL = """
def _answer():
    args, kwargs = _unpack(apis.judge.arguments())
    try:
        value = {{"value": _pack({name}(*args, **kwargs))}}
    except Exception as exc:
        value = {{"raised": type(exc).__name__, "message": str(exc)[:300]}}
    apis.judge.answer(**value)
_answer()
"""


class JudgeLimits(Record):
    """call_s: seconds of one call of the function under test. total_s: of all tests; those left then fail.

    The pool gives an evaluation 60 seconds; a test that begins at the last moment may take total_s again.
    """

    call_s: float = Field(default=5.0, gt=0)
    total_s: float = Field(default=20.0, gt=0, le=25.0)
    memory_mb: int = Field(default=256, ge=64)


@dataclass(frozen=True)
class Report:
    """passed: one entry a test. failures: what each failing test said. loaded: how defining the code went."""

    passed: tuple[bool, ...]
    failures: tuple[str, ...]
    loaded: SandboxResult


def run_tests(code: str, tests: Sequence[str], *, entry_point: str, limits: JudgeLimits) -> Report:
    """Run each test (Python that asserts) against `entry_point` of `code`.

    A test passes if it calls the function and runs to its end; one that never calls it would pass with any code.
    Tests see the function under its own name and as `candidate`, and share a namespace, in order.
    """
    end = time.monotonic() + limits.total_s
    of_candidate = SandboxLimits(wall_s=limits.call_s, cpu_s=limits.call_s, memory_mb=limits.memory_mb)
    with _Candidate(code, entry_point, of_candidate) as candidate:
        candidate.end = end
        loaded = candidate.load()
        of_judge = SandboxLimits(wall_s=limits.total_s, cpu_s=limits.total_s, memory_mb=limits.memory_mb)
        with Sandbox(candidate.api_call, limits=of_judge) as judge:
            prelude = VALUES + PROXY.format(name=entry_point)
            ready = judge.run(prelude)
            if ready.exec_status != "ok":
                raise RuntimeError(f"the judge's own code does not run: {ready.error}")
            results = [_one(judge, candidate, test, prelude) for test in tests]
    passed = tuple(not failure for failure in results)
    failures = tuple(f"test {n}: {failure}" for n, failure in enumerate(results, 1) if failure)
    return Report(passed, failures, loaded)


def _one(judge: Sandbox, candidate: _Candidate, test: str, prelude: str) -> str:
    """Why a test fails, or ""."""
    if time.monotonic() >= candidate.end:
        return "out of time"
    before = candidate.calls
    result = judge.run(test)
    if result.restarted:  # the test itself ran away
        judge.run(prelude)
    if result.exec_status != "ok":
        return (result.error or result.output)[:SHOWN_CHARS]
    return "" if candidate.calls > before else f"it never calls {candidate.entry_point}: a fault of the test"


@dataclass
class _Candidate:
    """Owner of the candidate's child, which is made anew when the code has killed it."""

    code: str
    entry_point: str
    limits: SandboxLimits
    end: float = 0.0
    calls: int = 0
    _arguments: Any = None
    _answer: Mapping[str, Any] | None = None  # the newest: the code may hand in many
    _sandbox: Sandbox | None = None

    def __enter__(self) -> _Candidate:
        self._sandbox = Sandbox(self._serve, limits=self.limits)
        return self

    def __exit__(self, *_: object) -> None:
        if self._sandbox is not None:
            self._sandbox.close()

    def load(self) -> SandboxResult:
        """Define the code. The helpers come after it: it cannot have replaced them by accident."""
        assert self._sandbox is not None
        loaded = self._sandbox.run(self.code)
        self._sandbox.run(VALUES)
        return loaded

    def api_call(self, app: str, api: str, kwargs: dict[str, Any]) -> object:
        """The judge calls the function under test."""
        if (app, api) != ("candidate", "call"):
            raise ApiError(None, f"there is no {app}.{api}")
        if time.monotonic() >= self.end:
            return {"raised": "TimeoutError", "message": "all tests together took too long"}
        assert self._sandbox is not None
        self.calls += 1
        self._arguments, self._answer = kwargs.get("arguments"), None
        result = self._sandbox.run(CALL.format(name=self.entry_point))
        if result.restarted:
            self.load()
        if result.exec_status == "ok" and self._answer is not None:
            return self._answer
        return {"raised": "RuntimeError", "message": (result.error or "it gave no answer")[:SHOWN_CHARS]}

    def _serve(self, app: str, api: str, kwargs: dict[str, Any]) -> object:
        """What the candidate's child may ask: the arguments of the call, and to hand in its answer."""
        if (app, api) == ("judge", "arguments"):
            return self._arguments
        if (app, api) == ("judge", "answer"):
            self._answer = _checked(kwargs)
            return None
        raise ApiError(None, f"No app named '{app}' found.")


def _checked(answer: dict[str, Any]) -> Mapping[str, Any]:
    """The answer with its fields known and its value well formed: the judge unpacks it."""
    if isinstance(answer.get("raised"), str):
        return {"raised": answer["raised"][:80], "message": str(answer.get("message", ""))[:SHOWN_CHARS]}
    if "value" not in answer or not _well_formed(answer["value"], depth=0):
        raise ApiError(None, "an answer of the wrong form")
    return {"value": answer["value"]}


def _well_formed(data: Any, *, depth: int) -> bool:
    """Whether `data` is what _pack makes."""
    if depth > 50:
        return False
    if data is None or isinstance(data, (bool, str, int)):
        return True
    if not isinstance(data, dict):
        return False
    match data:
        case {"n": "int" | "float" | "complex", "v": str(text)}:
            return len(text) <= MAX_NUMBER
        case {"b": str()}:
            return True
        case {"s": "list" | "tuple" | "set" | "frozenset", "v": list(items)}:
            return all(_well_formed(item, depth=depth + 1) for item in items)
        case {"d": list(pairs)}:
            return all(
                isinstance(pair, list)
                and len(pair) == 2
                and all(_well_formed(item, depth=depth + 1) for item in pair)
                for pair in pairs
            )
    return False
