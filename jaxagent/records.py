"""The base of every configuration record: frozen, refuses unknown keys, and explains what is wrong in one ConfigError.

In: a mapping of keys to values, and where it stands. Out: the record, or one ConfigError that names the key, what came
and what was expected. Where the values come from (run_file.py) and what a run's records are (config.py) is not its job.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from jaxagent.errors import ConfigError

R = TypeVar("R", bound="Record")  # `Self` would break the tests: beartype refuses it on single methods


class Record(BaseModel):
    """A frozen configuration record that refuses unknown keys. Build it with `parse`, which raises ConfigError."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def parse(cls: type[R], values: Mapping[str, Any], where: str = "") -> R:
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError("\n".join(_explain(cls, item, where) for item in _causes(error))) from None


def _causes(error: ValidationError) -> list[Any]:
    """Its items, without those that follow from others: a tuple whose only item is wrong counts as empty too."""
    items = error.errors()
    deep = {item["loc"][:-1] for item in items} | {item["loc"][:-2] for item in items}
    return [item for item in items if item["type"] != "too_short" or item["loc"] not in deep]


def _explain(record: type[BaseModel], item: Any, where: str) -> str:
    """One pydantic error as: key: what came, what was expected, what to do."""
    path = ".".join(str(part) for part in ([where] if where else []) + list(item["loc"]))
    if item["type"] == "extra_forbidden":
        known = _keys_at(record, item["loc"][:-1])
        near = difflib.get_close_matches(str(item["loc"][-1]), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
        return f"{path}: unknown key; {hint}"
    if item["type"] == "missing":
        return f"{path}: missing; it has no default, add it to the run file"
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "value_error":
        return f"{path}: {message}" if path else message
    return f"{path}={item['input']!r}: {message[0].lower()}{message[1:]}"


def _keys_at(record: type[BaseModel], location: Sequence[Any]) -> list[str]:
    """Field names of the record that a pydantic location leads to; list positions are stepped over."""
    for part in location:
        if isinstance(part, int):
            continue
        candidates = [record.model_fields[part].annotation] if part in record.model_fields else []
        for candidate in candidates:
            options = [candidate, *getattr(candidate, "__args__", ())]
            nested = [kind for kind in options if isinstance(kind, type) and issubclass(kind, BaseModel)]
            if nested:
                record = nested[0]
    return list(record.model_fields)
