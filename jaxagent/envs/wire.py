"""Records between the trainer's process and an environment worker.

Requests are pickled (they come from us). Answers are JSON: what an environment returns is checked field by
field, on both sides, and anything else is `EnvFailure("garbage")`; so `info` must be JSON-serialisable.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from jaxagent.errors import EnvFailure
from jaxagent.types import Evaluation, ExecStatus, Message, StepResult

MAX_TEXT = 4 << 20  # characters of one observation; the rollout cuts far below that
MAX_ANSWER = 8 * MAX_TEXT  # bytes of one answer as JSON; a character takes 6 at most
LARGEST = 1e18  # of a reward or a score
MAX_STATE = 16 << 20  # bytes of a snapshot


def encode(value: object) -> dict[str, Any]:
    """A StepResult, an Evaluation or None as JSON-ready fields."""
    if value is None:
        return {"record": "none"}
    if isinstance(value, StepResult):
        if isinstance(value.observation, str) and len(value.observation) > MAX_TEXT:
            raise EnvFailure("garbage", f"an observation of {len(value.observation)} characters")
        fields: dict[str, Any] = {
            "record": "step",
            "observation": value.observation,
            "exec_status": value.exec_status,
            "done": value.done,
            "reward": value.reward,
            "anchor": value.anchor,
            "info": dict(value.info),
            "messages": [[message.role, message.content] for message in value.messages],
        }
    elif isinstance(value, Evaluation):
        fields = {
            "record": "evaluation",
            "success": value.success,
            "passed": value.passed,
            "total": value.total,
            "failures": list(value.failures),
            "info": dict(value.info),
        }
    else:
        raise EnvFailure("garbage", f"the environment answered {type(value).__name__}, not a StepResult")
    try:
        text = json.dumps(fields, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise EnvFailure("garbage", f"the environment's answer is not JSON-serialisable: {exc}") from exc
    if len(text) >= MAX_ANSWER:
        raise EnvFailure("garbage", f"an answer of {len(text)} bytes; expected less than {MAX_ANSWER}")
    return json.loads(text)


def decode_step(fields: Mapping[str, Any]) -> StepResult:
    """Checked StepResult. Raises EnvFailure("garbage")."""
    _expect(fields, "step")
    reward = _finite("reward", _typed(fields, "reward", (int, float)))
    status = _typed(fields, "exec_status", str)
    if status not in {known.value for known in ExecStatus}:
        raise EnvFailure("garbage", f"unknown exec_status {status!r}")
    return StepResult(
        observation=_text(_typed(fields, "observation", str)),
        exec_status=ExecStatus(status),
        done=_typed(fields, "done", bool),
        reward=reward,
        anchor=_text(_typed(fields, "anchor", str)),
        info=_typed(fields, "info", dict),
        messages=_messages(_typed(fields, "messages", list)),
    )


def decode_evaluation(fields: Mapping[str, Any]) -> Evaluation:
    """Checked Evaluation. Raises EnvFailure("garbage")."""
    _expect(fields, "evaluation")
    passed, total = _typed(fields, "passed", int), _typed(fields, "total", int)
    if not 0 <= passed <= total:
        raise EnvFailure("garbage", f"passed={passed} of total={total}")
    failures, info = _typed(fields, "failures", list), _typed(fields, "info", dict)
    if isinstance(info.get("score"), (int, float)):
        _finite("score", info["score"])
    return Evaluation(
        success=_typed(fields, "success", bool),
        passed=passed,
        total=total,
        failures=tuple(_text(str(failure)) for failure in failures),
        info=info,
    )


def encode_state(state: object) -> dict[str, Any]:
    """A snapshot, or None of an environment that has none."""
    if state is None:
        return {"record": "snapshot", "state": None}
    if not isinstance(state, bytes) or len(state) > MAX_STATE:
        came = f"{len(state)} bytes" if isinstance(state, bytes) else type(state).__name__
        raise EnvFailure("garbage", f"a snapshot of {came}; expected bytes, at most {MAX_STATE}")
    return {"record": "snapshot", "state": base64.b64encode(state).decode()}


def decode_state(fields: Mapping[str, Any]) -> bytes | None:
    """Checked snapshot. Raises EnvFailure("garbage")."""
    _expect(fields, "snapshot")
    if fields.get("state") is None:
        return None
    try:
        return base64.b64decode(_typed(fields, "state", str), validate=True)
    except binascii.Error as exc:
        raise EnvFailure("garbage", f"a snapshot that is not base64: {exc}") from exc


def _messages(pairs: list[Any]) -> tuple[Message, ...]:
    """Messages of a StepResult: user or tool, text only."""
    for pair in pairs:
        whole = isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)
        if not whole or pair[0] not in ("user", "tool"):
            raise EnvFailure(
                "garbage", f"the message {str(pair)[:80]}; an environment speaks as user or tool, in text"
            )
    return tuple(Message(role, _text(content)) for role, content in pairs)


def _expect(fields: Mapping[str, Any], record: str) -> None:
    if fields.get("record") != record:
        raise EnvFailure("garbage", f"the environment answered {fields.get('record')!r}, expected {record!r}")


def _typed(fields: Mapping[str, Any], name: str, kind: Any) -> Any:
    value = fields.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise EnvFailure("garbage", f"{name} is {type(value).__name__} in the environment's answer")
    return value


def _finite(name: str, value: float) -> float:
    """A number that means and variances can be taken of: float32 must hold its square."""
    if not abs(value) <= LARGEST:
        raise EnvFailure(
            "garbage", f"{name}={str(value)[:24]}; expected a finite number, at most {LARGEST:g}"
        )
    return float(value)


def _text(text: str) -> str:
    """No lone surrogates: tokenizers and log files take UTF-8 only."""
    return text.encode("utf-8", "replace").decode("utf-8")
