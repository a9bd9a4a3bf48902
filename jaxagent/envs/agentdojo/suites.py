"""What we use of the package `agentdojo`, imported on first use: suites, fresh worlds, calls, the verdict."""

from __future__ import annotations

import importlib
import json
from ast import literal_eval
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from jaxagent.types import Task, ToolCall


@lru_cache
def suite(version: str, name: str) -> Any:
    """One suite of a benchmark version. The first call imports the package (seconds)."""
    return importlib.import_module("agentdojo.task_suite.load_suites").get_suite(version, name)


@lru_cache
def tools(version: str, name: str) -> tuple[dict[str, Any], ...]:
    """A suite's tools as OpenAI-style JSON-schema descriptions."""
    described = []
    for function in suite(version, name).tools:
        parameters = json.loads(json.dumps(function.parameters.model_json_schema()))
        parameters.pop("title", None)
        text = {"name": function.name, "description": function.description, "parameters": parameters}
        described.append({"type": "function", "function": text})
    return tuple(described)


def world(version: str, task: Task, attack: str) -> Any:
    """The state in which a task starts, the caller's own copy."""
    names = task.meta
    loaded = _loaded(version, names["suite"], names["user_task"], names.get("injection_task", ""), attack)
    return user_task(version, task).init_environment(loaded.model_copy(deep=True))


def user_task(version: str, task: Task) -> Any:
    return suite(version, task.meta["suite"]).user_tasks[task.meta["user_task"]]


def injection_task(version: str, task: Task) -> Any:
    return suite(version, task.meta["suite"]).injection_tasks[task.meta["injection_task"]]


def ground_truth(version: str, task: Task, attack: str) -> tuple[list[ToolCall], str]:
    """The reference calls of a user task, and what its answer must hold ("" if nothing)."""
    goal = user_task(version, task)
    calls = goal.ground_truth(world(version, task, attack))
    return [ToolCall(call.function, dict(call.args)) for call in calls], goal.GROUND_TRUTH_OUTPUT


def run_call(version: str, name: str, state: Any, call: ToolCall) -> tuple[str, bool]:
    """(text for the policy, whether it failed). The package validates arguments and catches what tools raise."""
    module = importlib.import_module("agentdojo.functions_runtime")
    runtime = module.FunctionsRuntime(suite(version, name).tools)
    result, error = runtime.run_function(state, call.name, dict(call.arguments))
    if error is not None:
        return error, True
    executor = importlib.import_module("agentdojo.agent_pipeline.tool_execution")
    return executor.tool_result_to_str(result), False


def as_lists(call: ToolCall) -> ToolCall:
    """Arguments in which a list is written as a string, made lists, as the package's own executor does."""
    return ToolCall(call.name, {name: _as_list(value) for name, value in call.arguments.items()})


def _as_list(value: Any) -> Any:
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        parsed = literal_eval(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # plain text that opens with a bracket
        return value
    return parsed if isinstance(parsed, list) else value


def holds(
    goal: Any, check: str, answer: str, before: Any, after: Any, calls: Sequence[ToolCall]
) -> tuple[bool, str]:
    """Whether a task's `check`, "utility" or "security", holds: by the calls where it looks at them, else by state.

    The checks look up what they expect to be there. One that raises because the policy removed it does not hold; the
    second value is then its exception.
    """
    module = importlib.import_module("agentdojo.functions_runtime")
    trace = [module.FunctionCall(function=call.name, args=dict(call.arguments)) for call in calls]
    try:
        by_calls = getattr(goal, f"{check}_from_traces")(answer, before, after, trace)
        return bool(getattr(goal, check)(answer, before, after) if by_calls is None else by_calls), ""
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"


@lru_cache(maxsize=256)
def _loaded(version: str, name: str, user: str, injection: str, attack: str) -> Any:
    """A suite's world from its files: 10 to 140 ms, against 1 ms for a copy of it."""
    chosen = suite(version, name)
    injections: Mapping[str, str] = {}
    if injection:
        injections = _attack(version, name, attack).attack(
            chosen.user_tasks[user], chosen.injection_tasks[injection]
        )
    return chosen.load_and_inject_default_environment(dict(injections))


@lru_cache
def _attack(version: str, name: str, attack: str) -> Any:
    importlib.import_module("agentdojo.attacks")  # fills the registry
    registry = importlib.import_module("agentdojo.attacks.attack_registry")
    # Of the attacked pipeline an attack reads only the name, to address the model; "local" is the package's word.
    return registry.load_attack(attack, suite(version, name), SimpleNamespace(name="local"))
