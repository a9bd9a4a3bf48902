"""YAML files of people: read more strictly than YAML asks for, and written so that they read back the same.

A key that stands twice is refused (YAML lets the last one win, silently), and `1e-5` is a number (YAML 1.1 wants
`1.0e-5`, and calls the other one text).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from jaxagent.errors import ConfigError

FLOAT = "tag:yaml.org,2002:float"
EXPONENT = re.compile(r"[-+]?(\d[\d_]*(\.\d*)?|\.\d+)[eE][-+]?\d+$")
STARTS = list("-+.0123456789")


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                problem = f"the key {key.value!r} stands twice in one mapping"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen |= {key.value} if isinstance(key, yaml.ScalarNode) else set()
        return super().construct_mapping(node, deep=deep)


class _Dumper(yaml.SafeDumper):
    pass


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(FLOAT, EXPONENT, STARTS)


def parse_yaml(text: str) -> Any:
    """The value of a YAML text. Raises yaml.YAMLError."""
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None


def read_yaml(path: Path) -> Any:
    """What a YAML file holds. Raises FileNotFoundError, or ConfigError if it is there and cannot be read."""
    try:
        return parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path}: not a readable YAML file: {error}") from None


def dump_yaml(value: Any) -> str:
    """YAML that `parse_yaml` reads to the same value; the order of keys is kept."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False)
