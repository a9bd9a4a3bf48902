"""The tools of an MCP server, on tasks and with a checker of the user's.

    env: {name: mcp, options: {command: [python, server.py], files: {train: tasks.jsonl}, checker: "checks:judge"}}

A task file is JSON Lines: {"prompt": …, "task_id"?, …}; the whole line reaches the checker. The policy calls tools
(chat/tools.py); a message without a call is its final answer. Then `checker(task, transcript, final_message)` returns
the `Evaluation`: `task` is the line, `transcript` the calls in order, {"name", "arguments", "result", "error"}.
"""

from __future__ import annotations

import functools
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from statistics import fmean
from typing import Any

from pydantic import ConfigDict

from jaxagent.chat.tools import parse_tool_calls
from jaxagent.envs.entry import Entry
from jaxagent.envs.http_client import check_url
from jaxagent.envs.json_lines import read_records
from jaxagent.envs.mcp_client import McpServer, ToolError, call_tool, list_tools
from jaxagent.envs.mcp_servers import McpOptions, claim, forget, start
from jaxagent.envs.protocol import EnvSpec, ScriptedPolicy
from jaxagent.envs.reference import resolve
from jaxagent.envs.verdicts import verdict_means
from jaxagent.errors import ConfigError, EnvFailure
from jaxagent.records import Record
from jaxagent.types import (
    Action,
    Evaluation,
    ExecStatus,
    Message,
    Metrics,
    Prompt,
    StepResult,
    Task,
    ToolCall,
    Trajectory,
)

Checker = Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]], str], Evaluation]
RULES = """\
{system}You can call these tools, given as JSON Schema, one a line:
{tools}
To call one, write <tool_call>
{{"name": …, "arguments": {{…}}}}
</tool_call>. A message without a call is your final answer."""


class Line(Record):
    """One line of a task file; further fields are the checker's."""

    model_config = ConfigDict(frozen=True, extra="allow")
    prompt: str
    task_id: str = ""


class McpTools:
    """One episode. State: the calls so far and the final message."""

    def __init__(self, options: McpOptions):
        self._options = options
        self._server: McpServer | None = None
        self._checker: Checker = resolve(options.checker, path=options.path, key="env.options.checker")

    def reset(self, task: Task) -> StepResult:
        self._line, self._transcript, self._final = dict(task.meta["line"]), list[dict[str, Any]](), ""
        self._server = claim(self._options)
        try:
            tools = list_tools(self._server)
        except EnvFailure:
            forget(self._options)
            raise
        return StepResult(str(self._line["prompt"]), anchor=task.task_id, info={"tools": tools})

    def step(self, action: Action) -> StepResult:
        if action.error:
            return StepResult(action.error, ExecStatus.INVALID, anchor=self._anchor)
        if not action.tool_calls:
            self._final = action.text
            return StepResult("The answer was handed in.", done=True, anchor=self._anchor)
        end = time.monotonic() + self._options.step_s
        replies = [self._call(call, end) for call in action.tool_calls]
        failed = any(entry["error"] for entry in self._transcript[-len(replies) :])
        return StepResult(
            "\n".join(replies),
            ExecStatus.RUNTIME_ERROR if failed else ExecStatus.OK,
            anchor=self._anchor,
            messages=tuple(Message("tool", reply) for reply in replies),
        )

    def evaluate(self) -> Evaluation:
        verdict = self._checker(self._line, self._transcript, self._final)
        if not isinstance(verdict, Evaluation):
            raise TypeError(f"{self._options.checker} returned {type(verdict).__name__}, not an Evaluation")
        return verdict

    def close(self) -> None:
        if self._server is not None and not self._options.reuse:
            self._server.close()
            self._server = None

    @property
    def _anchor(self) -> str:
        """What the server has been asked so far."""
        return json.dumps([[entry["name"], entry["arguments"]] for entry in self._transcript])

    def _call(self, call: ToolCall, end: float) -> str:
        """The reply to one call of a message; after `end` the message's further calls are not made."""
        assert self._server is not None
        try:
            if time.monotonic() > end:
                raise ToolError(f"not called: the calls before it took {self._options.step_s:g} s")
            text, error = call_tool(self._server, call.name, call.arguments)
        except ToolError as exc:
            text, error = f"Error: {exc}", True
        except EnvFailure:
            forget(self._options)
            raise
        entry = {"name": call.name, "arguments": dict(call.arguments), "result": text, "error": error}
        self._transcript.append(entry)
        return text or ("Error." if error else "Done.")


@functools.cache
def _read(path: str) -> tuple[Line, ...]:
    return tuple(read_records(path, Line, "env.options.files"))


def tasks(options: McpOptions, split: str) -> Sequence[Task]:
    if split not in options.files:
        raise ConfigError(f"mcp has no split {split!r}; its splits are {sorted(options.files)}")
    found = []
    for number, line in enumerate(_read(options.files[split])):
        name = line.task_id or f"mcp/{split}/{number}"
        found.append(Task(name, "mcp", split, name, seed=number, meta={"line": line.model_dump()}))
    return found


def prompt(options: McpOptions, task: Task, first: StepResult) -> Prompt:
    tools = tuple(first.info["tools"])
    user = Message("user", first.observation)
    if options.tools_in_text:
        system = f"{options.system}\n" if options.system else ""
        listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        return Prompt((Message("system", RULES.format(system=system, tools=listed)), user))
    opening = (Message("system", options.system),) if options.system else ()
    return Prompt((*opening, user), tools)


def observe(text: str) -> Message:
    return Message("tool", text)


def metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """Means over episodes: success, fraction of the checker's tests, and answered (a final message was sent)."""
    means = verdict_means(
        trajectories,
        {
            "success": lambda verdict: verdict.success,
            "test_fraction": lambda verdict: verdict.passed / max(verdict.total, 1),
        },
    )
    return means and {**means, "answered": fmean(trajectory.status == "done" for trajectory in trajectories)}


def _expert(
    make: Callable[..., ScriptedPolicy], task: Task, rng: Random, sloppiness: float
) -> ScriptedPolicy:
    return make(task.meta["line"], rng, sloppiness)


def mcp_spec(options: McpOptions) -> EnvSpec:
    """Starts the server once and lists its tools: what does not work is known before the run, as a ConfigError."""
    if bool(options.command) == bool(options.url):
        raise ConfigError(
            f"env.options: command={options.command}, url={options.url!r}; give exactly one of them"
        )
    named = options.url or " ".join(options.command)
    if options.url:
        check_url(options.url, "env.options.url")
    elif shutil.which(options.command[0]) is None:
        raise ConfigError(f"env.options.command: there is no program {options.command[0]!r} on the PATH")
    resolve(options.checker, path=options.path, key="env.options.checker")
    make = resolve(options.expert, path=options.path, key="env.options.expert") if options.expert else None
    for split in options.files:
        tasks(options, split)
    try:
        server = start(options, first=True)
        try:
            tools = list_tools(server)
        finally:
            server.close()
    except (EnvFailure, OSError) as failure:
        raise ConfigError(f"env.options: the MCP server {named} does not answer: {failure}") from failure
    if not tools:
        raise ConfigError(f"env.options: the MCP server {named} has no tools")
    return EnvSpec(
        name="mcp",
        make=partial(McpTools, options),
        tasks=partial(tasks, options),
        prompt=partial(prompt, options),
        parse=partial(parse_tool_calls, tools=tools, text_ok=True),
        observe=observe,
        metrics=metrics,
        max_steps=options.max_steps,
        expert=partial(_expert, make) if make else None,
        worker={"step_s": 3 * options.step_s},
    )


ENTRY = Entry(McpOptions, mcp_spec)
