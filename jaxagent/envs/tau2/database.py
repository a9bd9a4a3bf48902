"""An episode's database over a shared one: records are copied when a tool first reaches for them.

In: the tables of the benchmark, which stay as they are. Out: tables that look like plain dicts to the tools, and what
was changed. A whole copy would cost 34 ms (retail) or 95 ms (airline) an episode, and as much again for each verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

Tables = Mapping[str, Mapping[str, Any]]
Changes = dict[str, dict[str, Any]]


class Table(dict[str, Any]):
    """One table: id -> record. A record reached by its id is the episode's own; those met on the way (values,
    items) may be the shared ones, which the tools only read there.
    """

    def __init__(self, shared: Mapping[str, Any]):
        super().__init__(shared)
        self._shared = shared
        self._own: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        if key not in self._own:
            super().__setitem__(key, deepcopy(super().__getitem__(key)))
            self._own.add(key)
        return super().__getitem__(key)

    def __setitem__(self, key: str, record: Any) -> None:
        super().__setitem__(key, record)
        self._own.add(key)

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self:
            return default
        return self[key]

    @property
    def changed(self) -> dict[str, Any]:
        """The records that are new or differ from the shared ones."""
        return {
            key: super(Table, self).__getitem__(key)
            for key in sorted(self._own)
            if key not in self._shared or super(Table, self).__getitem__(key) != self._shared[key]
        }


def open_tables(shared: Tables, changes: Changes | None = None) -> dict[str, Table]:
    """Tables for one episode, with `changes` (see `changed`) made."""
    tables = {name: Table(records) for name, records in shared.items()}
    for name, records in (changes or {}).items():
        for key, record in records.items():
            tables[name][key] = deepcopy(record)
    return tables


def changed(tables: Mapping[str, Table]) -> Changes:
    """What differs from the shared database. Two databases over one shared one are equal iff these are.

    Numbers compare by value (100 equals 100.0), as after the upstream data model has read them.
    """
    return {name: records for name, table in tables.items() if (records := table.changed)}


def differences(got: Changes, wanted: Changes) -> list[str]:
    """One line for each record that is not as wanted."""
    found = []
    for name in sorted({*got, *wanted}):
        ours, theirs = got.get(name, {}), wanted.get(name, {})
        for key in sorted({*ours, *theirs}):
            if key not in theirs:
                found.append(f"{name}/{key} was changed and should not have been")
            elif key not in ours:
                found.append(f"{name}/{key} was not changed and should have been")
            elif ours[key] != theirs[key]:
                fields = [
                    field for field in {**ours[key], **theirs[key]} if _differs(ours, theirs, key, field)
                ]
                found.append(f"{name}/{key} differs in {', '.join(fields)}")
    return found


def _differs(ours: Mapping[str, Any], theirs: Mapping[str, Any], key: str, field: str) -> bool:
    return ours[key].get(field) != theirs[key].get(field)
