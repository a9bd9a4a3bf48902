"""What an environment's module offers the table: its options and its maker; and how it asks for what it needs."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxagent.envs.protocol import EnvSpec
from jaxagent.errors import ConfigError
from jaxagent.records import Record


@dataclass(frozen=True)
class Entry:
    """options: typed record of the run file's `env.options`. make: such a record -> the EnvSpec."""

    options: type[Record]
    make: Callable[[Any], EnvSpec]


class NoOptions(Record):
    """An environment without settings."""


def need(module: str, *, install: str) -> ModuleType:
    """Import an optional package. Raises ConfigError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        raise ConfigError(
            f"this environment needs the package {module!r} ({exc}); install it: {install}"
        ) from exc


def data_path(given: str, *, variable: str, what: str, fetch: str) -> Path:
    """The data folder or file that an option or else an environment variable names; it must exist.

    Raises ConfigError that says what is looked for and how to fetch it.
    """
    named = given or os.environ.get(variable, "")
    path = Path(named).expanduser()
    if named and path.exists():
        return path
    came = f"{named} does not exist" if named else f"neither env.options nor ${variable} names it"
    raise ConfigError(f"{what}: {came}. {fetch}")
