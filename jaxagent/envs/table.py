"""Environments by the name that a run file uses. Adding one: its options record, its factory, one line here."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jaxagent.config import Record
from jaxagent.envs.doors import DOORS
from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.world.spec import world_spec
from jaxagent.errors import ConfigError


@dataclass(frozen=True)
class Entry:
    options: type[Record]
    make: Callable[[Any], EnvSpec]


class NoOptions(Record):
    """An environment without settings."""


class WorldOptions(Record):
    level: Literal["easy", "full"] = "full"


ENVIRONMENTS: Mapping[str, Entry] = {
    "world": Entry(WorldOptions, lambda options: world_spec(options.level)),
    "doors": Entry(NoOptions, lambda options: DOORS),
}


# Environments that shipped run files name and this version does not have.
PLANNED = ("appworld",)


def find_env(name: str, options: Mapping[str, Any]) -> EnvSpec:
    """The environment of a run file's `env` section."""
    if name in PLANNED:
        raise ConfigError(
            f"env.name={name!r}: this version does not have that environment yet; its run files show the published "
            f"set-up. Here: {', '.join(sorted(ENVIRONMENTS))}"
        )
    if name not in ENVIRONMENTS:
        near = difflib.get_close_matches(name, ENVIRONMENTS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(ENVIRONMENTS))}"
        raise ConfigError(f"env.name={name!r} is unknown; {hint}")
    entry = ENVIRONMENTS[name]
    return entry.make(entry.options.parse(options, "env.options"))
