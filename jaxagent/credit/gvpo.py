"""GVPO: correct the advantage of steps that failed to execute (OpenReview RY47Tq0VsV).

In: any base credit per trajectory or step. Out: the same trajectories with the advantage of failed steps replaced; the
others are untouched. Shaping comes before every filter: failed steps of a zero-variance group still receive -b.

    base A   step ok   failed: mult     add    add_all   mask   none
     +.5       +.5          0          0       +.3       0     +.5
      0         0         -.2        -.2       -.2       0      0
     -.5       -.5        -.6        -.7       -.7       0     -.5        (b = .2)
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from jaxagent.credit.group import ZERO_TOLERANCE, step_advantage
from jaxagent.errors import ConfigError
from jaxagent.stage import Credit
from jaxagent.types import Credited, ExecStatus, Group, Step

# Advantage of a failed step by the sign of the base advantage: shape -> (A, b) -> (below 0, zero, above 0).
SHAPES: dict[str, Callable[[np.ndarray, float], tuple[np.ndarray | float, ...]]] = {
    "mult": lambda a, b: ((1 + b) * a, -b, 0.0),
    "add": lambda a, b: (a - b, -b, 0.0),
    "add_all": lambda a, b: (a - b, -b, a - b),
    "mask": lambda a, b: (0.0, 0.0, 0.0),
    "none": lambda a, b: (a, 0.0, a),
}


ERROR_KEYS = ("error", "errors")


def failed_step(step: Step, *, invalid_is_fail: bool = True, api_error_is_fail: bool = False) -> bool:
    """A syntax error, an exception or a time-out; a message without a legal action too, unless excluded.

    api_error_is_fail: what ran and answered an error as data failed too.
    A message that was never executed (ExecStatus.NONE) did not fail.
    """
    if step.exec_status is ExecStatus.OK:
        return api_error_is_fail and answers_error(step.observation_after)
    return step.exec_status.failed and (invalid_is_fail or step.exec_status is not ExecStatus.INVALID)


def answers_error(observation: str) -> bool:
    """Whether the answer, or a line of it, is a record (JSON or Python) that says of itself that it is an error.

    {"error": "no such song"}   {'status': 'error'}   {"success": false}      not: {"error": null}, a text about errors
    """
    whole = observation.strip()
    return any(_says_error(_record(text)) for text in {whole, *map(str.strip, whole.splitlines())})


def _record(text: str) -> Any:
    if not (text.startswith("{") and text.endswith("}")):
        return None
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
    return None


def _says_error(record: Any) -> bool:
    if not isinstance(record, dict):
        return False
    named = any(record.get(key) for key in ERROR_KEYS)
    return named or record.get("status") == "error" or record.get("success") is False


def shape_failed(
    advantage_K: Float[np.ndarray, "K"],
    fail_K: Bool[np.ndarray, "K"],
    *,
    b: float,
    shape: str,
    tolerance: float = ZERO_TOLERANCE,
) -> Float[np.ndarray, "K"]:
    """Advantage per step with failed steps shaped. |A| <= tolerance counts as 0 (float noise has no sign)."""
    base_K = np.asarray(advantage_K, np.float64)
    below, zero, above = SHAPES[shape](base_K, b)
    shaped_K = np.where(base_K < -tolerance, below, np.where(base_K > tolerance, above, zero))
    return np.where(fail_K, shaped_K, base_K).astype(np.float32)


def gvpo(
    base: Credit,
    *,
    b: float = 0.2,
    shape: str = "mult",
    tolerance: float = ZERO_TOLERANCE,
    invalid_is_fail: bool = True,
    api_error_is_fail: bool = False,
) -> Credit:
    """Shape the failed steps of `base`. `mult` is the paper's rule, `add` its ablation, `none` Dr. GRPO."""
    if shape not in SHAPES:
        raise ConfigError(f"gvpo shape={shape!r}; known shapes: {', '.join(map(repr, SHAPES))}")
    if b < 0:
        raise ConfigError(f"gvpo b={b} would reward failed steps; expected b >= 0")

    def credit(groups: Sequence[Group]) -> list[Credited]:
        shaped = []
        for item in base(groups):
            fails = [
                failed_step(step, invalid_is_fail=invalid_is_fail, api_error_is_fail=api_error_is_fail)
                for step in item.trajectory.steps
            ]
            advantage_K = shape_failed(
                step_advantage(item, "gvpo"), np.array(fails, bool), b=b, shape=shape, tolerance=tolerance
            )
            shaped.append(replace(item, advantage_K=advantage_K))
        return shaped

    return credit
