"""The tools of one conversation: instances of the package's classes, and calls on them.

A call is a name and plain values; only functions that the entry's classes document can be reached, and no text is
evaluated. The package's own executor evaluates the model's text and keeps instances in a module's globals; its long
scenarios moreover share dictionaries of a module between all instances. Here every conversation owns deep copies.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
from collections.abc import Mapping
from typing import Any

from jaxagent.envs.bfcl.data import DOCS, Entry, functions
from jaxagent.types import ToolCall

SOURCE = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
STATELESS = ("MathAPI",)
FAILED = "Error during execution: "
LARGEST = 1000  # digits or exponent
NOT_STATE = ("_random", "_api_description")  # a generator has no readable state; descriptions never change


class Backend:
    """Instances by class name. Picklable."""

    def __init__(self, entry: Entry):
        self.instances = {name: _instance(name, entry) for name in entry.classes}
        self._owner = {name: owner for owner in entry.classes for name in functions(owner)}

    def call(self, call: ToolCall) -> str:
        """The result as the benchmark writes it: text as it is, dictionaries as JSON, the rest by `str`.

        A call that raises answers with the exception's text, as the benchmark's executor does. Arguments are copied:
        tools keep lists that they are given, and append to them later.
        """
        owner = self._owner.get(call.name)
        if owner is None:
            return f"{FAILED}name '{call.name}' is not defined"
        if owner == "MathAPI" and _endless(call.arguments):
            return f"{FAILED}a number is too large for this function"
        try:
            arguments = copy.deepcopy(dict(call.arguments))
            return _written(getattr(self.instances[owner], call.name)(**arguments))
        except Exception as error:
            return f"{FAILED}{error}"

    def key(self) -> str:
        """A short name of the state: equal for equal states, over what calls can read and change."""
        state = {name: _state(instance) for name, instance in self.instances.items()}
        return hashlib.sha1(repr(state).encode("utf-8", "replace")).hexdigest()[:16]


def _endless(arguments: Mapping[str, Any]) -> bool:
    """Whether exact arithmetic could take hours and the worker with it: 10**12 digits, or to the power of 10**30.

    The largest such number of the ground truth is 10.
    """
    demanded = [arguments.get(name) for name in ("precision", "exponent", "decimal_places")]
    return any(isinstance(value, int) and abs(value) > LARGEST for value in demanded)


def failed(result: str) -> bool:
    """Whether a call raised, or its function reported an error."""
    return result.startswith((FAILED, '{"error":'))


def _instance(name: str, entry: Entry) -> Any:
    instance = getattr(importlib.import_module(f"{SOURCE}.{DOCS[name]}"), name)()
    if name not in STATELESS:
        scenario = copy.deepcopy(entry.config.get(name, {}))
        instance._load_scenario(scenario, long_context=entry.category == "long_context")
    return copy.deepcopy(instance)


def _written(result: Any) -> str:
    if isinstance(result, str):
        return result
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except (TypeError, ValueError):  # mpmath's numbers
            return str(result)
    return str(result)


def _state(instance: Any) -> Mapping[str, str]:
    return {name: repr(value) for name, value in sorted(vars(instance).items()) if name not in NOT_STATE}
