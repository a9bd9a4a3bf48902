"""A user's object by name: `package.module:NAME`, from a folder of theirs if need be.

The folder goes to the end of sys.path, so that it shadows nothing; the environment workers start with the trainer's
sys.path (local_process.py) and find the module there too.
"""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from pathlib import Path
from typing import Any

from jaxagent.errors import ConfigError

FORM = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")


def resolve(reference: str, *, path: str = "", key: str) -> Any:
    """The object that `reference` names. Raises ConfigError, in which `key` is the option's name in the run file."""
    match = FORM.fullmatch(reference)
    if match is None:
        raise ConfigError(
            f"{key}={reference!r}: expected package.module:NAME, for example my_package.env:SPEC"
        )
    module_name, name = match.groups()
    folder = _add_to_path(path, key) if path else None
    try:
        module = importlib.import_module(module_name)
    except Exception as exc:
        where = (
            f" (the folder {folder} is on sys.path)" if folder else "; give its folder in env.options.path"
        )
        raise ConfigError(
            f"{key}={reference!r}: importing {module_name} failed with {type(exc).__name__}: {exc}{where}"
        ) from exc
    if folder:
        _check_place(module, folder, f"{key}={reference!r}")
    if not hasattr(module, name):
        names = [found for found in vars(module) if not found.startswith("_")]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names)}"
        raise ConfigError(f"{key}={reference!r}: {module_name} has no {name}; {hint}")
    return getattr(module, name)


def _add_to_path(path: str, key: str) -> Path:
    folder = Path(path).expanduser().resolve()
    if not folder.is_dir():
        raise ConfigError(
            f"{key}: the folder {path!r} does not exist (looked for {folder}; relative paths start at the folder "
            "that the command runs in)"
        )
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return folder


def _check_place(module: Any, folder: Path, came: str) -> None:
    """Another module of the same name comes first on sys.path: the run would silently use that one."""
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).resolve().is_relative_to(folder):
        raise ConfigError(f"{came} was found at {file}, not in {folder}; rename your module")
