"""The machine under every app: tables, sessions, argument checks, dispatch of `apis.<app>.<api>(...)`.

In: an app name, an API name and JSON-like arguments, as the agent wrote them. Out: JSON-like results, or an
`ApiError` in AppWorld's words. Knows no app and no task. An API is a plain function `api(world, name: type)`;
its signature and docstring are its documentation (apps/api_docs.py), so the two cannot drift apart. A
function with an `access_token` argument (`tok` at the easy level) runs only with a token of its app's login.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, get_type_hints

from jaxagent.envs.sandbox import ApiError

Row = dict[str, Any]
Tables = dict[str, dict[int, Row]]

MAX_TEXT = 5_000  # characters of one argument: an agent cannot fill the host's memory through an API
MAX_ROWS = 1_000  # rows of one table
TYPE_NAMES = {int: "integer", float: "number", str: "string", bool: "boolean", list: "list", object: "any"}


@dataclass(frozen=True)
class Parameter:
    name: str
    type: type
    required: bool
    default: Any
    description: str
    optional: bool  # None is allowed


@dataclass(frozen=True)
class Api:
    """One API: the function that runs it, an example of its result, and its name if not the function's."""

    run: Callable[..., Any]
    returns: Any
    alias: str = ""

    @property
    def name(self) -> str:
        return self.alias or self.run.__name__


@dataclass(frozen=True)
class App:
    name: str
    description: str
    apis: tuple[Api, ...]

    def find(self, name: str) -> Api | None:
        return next((api for api in self.apis if api.name == name), None)


@lru_cache(maxsize=512)
def parameters(run: Callable[..., Any]) -> tuple[Parameter, ...]:
    """Parameters of an API function: its signature, and the `name: text` lines of its docstring."""
    hints = get_type_hints(run)
    notes = dict(line.strip().split(": ", 1) for line in (run.__doc__ or "").splitlines()[1:] if ": " in line)
    found = []
    for name, parameter in list(inspect.signature(run).parameters.items())[1:]:
        kinds = [kind for kind in getattr(hints[name], "__args__", (hints[name],)) if kind is not type(None)]
        required = parameter.default is inspect.Parameter.empty
        default = None if required else parameter.default
        optional = default is None and not required
        found.append(Parameter(name, kinds[0], required, default, notes.get(name, ""), optional))
    return tuple(found)


def coerce(value: Any, kind: type) -> Any:
    """`value` as `kind`, as lenient as a web framework (`"5"` is an integer); raises ValueError."""
    if kind is object and not isinstance(value, (list, tuple)):
        return value if isinstance(value, bool) else coerce(value, str if isinstance(value, str) else float)
    if kind in (list, object):
        if not isinstance(value, (list, tuple)) or len(value) > 1000:
            raise ValueError
        return [item if isinstance(item, (str, int, float)) else str(item)[:MAX_TEXT] for item in value]
    if kind is bool:
        if not isinstance(value, bool):
            raise ValueError
        return value
    if (
        isinstance(value, bool)
        or not isinstance(value, (str, int, float))
        or len(str(value)[:100_000]) > MAX_TEXT
    ):
        raise ValueError
    if kind is str:
        return str(value)
    number = float(value)
    if not math.isfinite(number) or abs(number) > 1e12 or (kind is int and number != int(number)):
        raise ValueError
    return int(number) if kind is int else number


@dataclass
class World:
    """State of one episode. `tables` is what tests compare; sessions and the completion call are kept apart.

    Rows are flat: scalars and tuples only. APIs replace values and never change them in place.
    """

    apps: Mapping[str, App]
    tables: Tables
    passwords: Mapping[str, str] = field(default_factory=dict)  # app -> password of its one account
    username: tuple[str, ...] = ()  # names that logins accept
    opening: Mapping[str, Any] = field(default_factory=dict)  # what the agent is told about its principal
    now: str = "2026-05-18T12:00:00"
    brief: bool = False  # short error texts (easy level)
    completed: bool = False
    status: str = ""
    answer: Any = None
    tokens: set[str] = field(default_factory=set)

    def call(self, app_name: str, api_name: str, arguments: Mapping[str, Any]) -> Any:
        """Run one API. Raises ApiError; any other exception is a fault of the world itself."""
        app = self.apps.get(app_name)
        if app is None:
            raise self.refuse(
                404, f"No app named '{app_name}' found. Apps: {', '.join(self.apps)}.", "no such app"
            )
        api = app.find(api_name)
        if api is None:
            names = ", ".join(api.name for api in app.apis)
            long = f"No API named '{api_name}' found in the {app_name} app. APIs: {names}."
            raise self.refuse(404, long, f"no api; {app_name} has {names}")
        checked = self.check(api, arguments)
        if "access_token" in checked or "tok" in checked:
            self.authorise(app_name, checked.get("access_token") or checked.get("tok"))
        return api.run(self, **checked)

    def check(self, api: Api, arguments: Mapping[str, Any]) -> dict[str, Any]:
        known = {parameter.name: parameter for parameter in parameters(api.run)}
        reasons = [f"{name}: extra fields not permitted" for name in arguments if name not in known]
        checked: dict[str, Any] = {}
        for name, parameter in known.items():
            value = arguments.get(name)
            if name not in arguments or (value is None and parameter.optional):
                if parameter.required and name not in ("access_token", "tok"):
                    reasons.append(f"{name}: field required")
                checked[name] = parameter.default
                continue
            try:
                checked[name] = coerce(value, parameter.type)
            except (ValueError, TypeError, OverflowError):
                reasons.append(f"{name}: value is not a valid {TYPE_NAMES[parameter.type]}")
        if reasons:
            needs = ", ".join(known) or "nothing"
            raise self.refuse(
                422, "Validation error. Reason: \n" + "\n".join(reasons), f"{api.name} takes {needs}"
            )
        return checked

    def authorise(self, app: str, token: str | None) -> None:
        if token not in self.tokens or not str(token).startswith(app + "-"):
            long = (
                f"You are either not authorized to access this {app} API endpoint or your access token is "
                "missing, invalid or expired."
            )
            raise self.refuse(401, long, "login first")

    def login(self, app: str, username: str, password: str) -> str:
        if username not in self.username or password != self.passwords.get(app):
            raise self.refuse(401, "Invalid credentials", "wrong pw")
        token = f"{app}-{hashlib.sha256(f'{app}:{username}:{password}'.encode()).hexdigest()[:16]}"
        self.tokens.add(token)
        return token

    def refuse(self, code: int, message: str, brief: str = "") -> ApiError:
        return ApiError(code, (brief or message) if self.brief else message)

    # --- tables ---------------------------------------------------------------------------------------------

    def rows(self, table: str) -> Iterable[Row]:
        return self.tables[table].values()

    def get(self, table: str, key: int, what: str) -> Row:
        row = self.tables[table].get(key)
        if row is None:
            raise self.refuse(
                404, f"The {what} with {what.replace(' ', '_')}_id {key} does not exist.", f"no {what} {key}"
            )
        return row

    def add(self, table: str, key: int | None = None, **fields: Any) -> int:
        rows = self.tables[table]
        if len(rows) >= MAX_ROWS:
            raise self.refuse(429, "Too many records.", "full")
        key = max(rows, default=0) + 1 if key is None else key
        rows[key] = {"id": key, **fields}
        return key

    def change(self, table: str, key: int, **fields: Any) -> None:
        self.tables[table][key] = self.tables[table][key] | fields

    def remove(self, table: str, key: int) -> None:
        del self.tables[table][key]


def view(row: Row, id_name: str, *names: str) -> Row:
    """What an API shows of a row: its id under the API's name for it, and the named fields."""
    shown = {id_name: row["id"]}
    for name in names:
        value = row[name]
        shown[name] = list(value) if isinstance(value, tuple) else value
    return shown


def page(rows: list[Row], index: int, limit: int) -> list[Row]:
    """One page of a result; a page holds 20 rows at most, so long results have to be walked."""
    limit = min(max(limit, 1), 20)
    start = max(index, 0) * limit
    return rows[start : start + limit]


def copy_tables(tables: Tables) -> Tables:
    return {name: {key: dict(row) for key, row in rows.items()} for name, rows in tables.items()}
