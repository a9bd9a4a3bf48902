"""A user's task file: JSON Lines, one typed record a line. Faults name the file and the line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from jaxagent.errors import ConfigError, DataError
from jaxagent.records import Record

R = TypeVar("R", bound=Record)


def read_records(path: str, kind: type[R], key: str) -> list[R]:
    """The records of a file. `key` is the option that names it. Raises ConfigError or DataError."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(
            f"{key}={path!r}: there is no such file (relative paths start at the current folder)"
        )
    found: list[R] = []
    for number, value in read_objects(file):
        try:
            found.append(kind.parse(value))
        except ConfigError as exc:
            raise DataError(f"{file}:{number}: {exc}") from exc
    if not found:
        raise DataError(f"{file} holds no tasks; expected one JSON object a line")
    return found


def read_objects(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number from 1, object) of each line that is not blank. Raises DataError."""
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except ValueError as exc:
                raise DataError(f"{file}:{number}: not JSON: {exc}") from exc
            if not isinstance(value, dict):
                raise DataError(f"{file}:{number}: expected a JSON object, got {type(value).__name__}")
            yield number, value
