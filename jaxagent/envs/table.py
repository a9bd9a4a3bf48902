"""Environments by the name that a run file uses. Adding one: a module with an `ENTRY`, one line here.

Modules are imported when their environment is asked for, and import the packages that they need when the environment
is made: a run never pays for, or fails over, an environment that it does not use.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

from jaxagent.envs.entry import Entry
from jaxagent.envs.protocol import EnvSpec
from jaxagent.errors import ConfigError

ENVIRONMENTS: Mapping[str, str] = {
    "doors": "jaxagent.envs.doors",
    "world": "jaxagent.envs.world.spec",
    "agentdojo": "jaxagent.envs.agentdojo.spec",
    "alfworld": "jaxagent.envs.alfworld.spec",
    "appworld": "jaxagent.envs.appworld.spec",
    "bfcl": "jaxagent.envs.bfcl.spec",
    "code": "jaxagent.envs.code_tests",
    "gymnasium": "jaxagent.envs.gymnasium_text",
    "http": "jaxagent.envs.remote",
    "math": "jaxagent.envs.math_answers",
    "mcp": "jaxagent.envs.mcp_tools",
    "python": "jaxagent.envs.own_class",
    "reasoning_gym": "jaxagent.envs.reasoning_gym",
    "scienceworld": "jaxagent.envs.scienceworld.spec",
    "search_qa": "jaxagent.envs.search_qa",
    "sokoban": "jaxagent.envs.sokoban",
    "tau2": "jaxagent.envs.tau2.spec",
    "textworld": "jaxagent.envs.textworld.spec",
    "webshop": "jaxagent.envs.webshop.spec",
}
"""Name -> the module whose `ENTRY` makes it."""


def find_env(name: str, options: Mapping[str, Any]) -> EnvSpec:
    """The environment of a run file's `env` section. Raises ConfigError for unknown names and options."""
    if name not in ENVIRONMENTS:
        near = difflib.get_close_matches(name, ENVIRONMENTS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(ENVIRONMENTS))}"
        raise ConfigError(f"env.name={name!r} is unknown; {hint}")
    entry: Entry = importlib.import_module(ENVIRONMENTS[name]).ENTRY
    return entry.make(entry.options.parse(options, "env.options"))
