"""Reads and writes run files: YAML with `extends` and dotted overrides.

In: a YAML file and `key.sub=value` strings. Out: a `RunConfig`, or one ConfigError that names the file or the key, what
came and what was expected. What may stand in a run file is config.py's job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from jaxagent.config import RunConfig
from jaxagent.errors import ConfigError
from jaxagent.yaml_files import dump_yaml, parse_yaml, read_yaml


def read_run(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run file, its `extends` chain (paths relative to the file) and `a.b=value` overrides (value is YAML)."""
    values = _read_yaml(Path(path), ())
    for override in overrides:
        _set(values, override)
    return RunConfig.parse(values)


def write_run(config: RunConfig, path: Path) -> None:
    path.write_text(dump_yaml(config.model_dump(mode="json")))


def _read_yaml(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    path = path.resolve()
    if path in seen:
        raise ConfigError(f"{path}: `extends` goes round in a circle through {seen[-1]}; remove one of them")
    try:
        values = read_yaml(path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such run file; see configs/runs for those that ship") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a mapping of keys to values, got {type(values).__name__}")
    parent = values.pop("extends", None)
    if parent is not None and not isinstance(parent, str):
        raise ConfigError(f"{path}: extends={parent!r}: expected the name of one run file")
    return _merge(_read_yaml(path.parent / parent, (*seen, path)), values) if parent else values


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merge key by key; anything else, lists included, is replaced."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _set(values: dict[str, Any], override: str) -> None:
    """Apply `a.b=value`; a number in the path indexes a list (`stages.0.options.iterations=5`)."""
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise ConfigError(
            f"override {override!r}: expected key=value, for example seed=3 or rollout.max_steps=8"
        )
    try:
        value = parse_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: the value is not YAML: {error}") from None
    *parents, last = path.split(".")
    node: Any = values
    for part in parents:
        node = _child(node, part, override)
    if isinstance(node, list):
        _child(node, last, override)
        node[int(last)] = value
    elif isinstance(node, dict):
        node[last] = value
    else:
        raise ConfigError(f"override {override!r}: {'.'.join(parents)} is not a mapping")


def _child(node: Any, part: str, override: str) -> Any:
    if isinstance(node, list):
        if not (part.isascii() and part.isdigit()) or int(part) >= len(node):
            raise ConfigError(f"override {override!r}: {part!r} is not an index below {len(node)}")
        return node[int(part)]
    if not isinstance(node, dict):
        raise ConfigError(f"override {override!r}: there is nothing below {part!r} to set")
    if node.get(part) is None:
        node[part] = {}
    return node[part]
