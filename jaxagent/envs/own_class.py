"""A user's own environment, by the name of its `EnvSpec`: nothing in this package has to be edited.

    env: {name: python, options: {spec: "my_package.my_module:SPEC", path: folder/of/my_package}}

What `spec` names may be an `EnvSpec`, an `Entry` (typed options, as our own environments have), or a function of
keyword arguments that returns an `EnvSpec`; `options` goes to the latter two.
"""

from __future__ import annotations

import inspect
from typing import Any

from pydantic import Field

from jaxagent.envs.entry import Entry
from jaxagent.envs.protocol import EnvSpec, check_importable
from jaxagent.envs.reference import resolve
from jaxagent.errors import ConfigError
from jaxagent.records import Record

KEY = "env.options.spec"


class OwnClassOptions(Record):
    """spec: `package.module:NAME`. path: folder that holds the package, where it is not installed. options: its own."""

    spec: str
    path: str = ""
    options: dict[str, Any] = Field(default={})


def own_spec(options: OwnClassOptions) -> EnvSpec:
    """The user's EnvSpec. Raises ConfigError when it is none or the workers could not make its Env."""
    named = resolve(options.spec, path=options.path, key=KEY)
    spec = _made(named, options)
    if not isinstance(spec, EnvSpec):
        raise ConfigError(
            f"{KEY}={options.spec!r} gives {type(spec).__name__}; expected an EnvSpec, an Entry, or a function of "
            "keyword arguments that returns an EnvSpec (docs/environments/own.md)"
        )
    check_importable(spec, f"{KEY}={options.spec!r}")
    return spec


def _made(named: Any, options: OwnClassOptions) -> Any:
    if isinstance(named, EnvSpec):
        if options.options:
            raise ConfigError(
                f"env.options.options={options.options}: {options.spec} is an EnvSpec, which takes none; name a "
                "function or an Entry instead"
            )
        return named
    if isinstance(named, Entry):
        return named.make(named.options.parse(options.options, "env.options.options"))
    if not callable(named):
        return named
    try:
        inspect.signature(named).bind(**options.options)
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"env.options.options={options.options} do not fit {options.spec}: {exc}") from exc
    return named(**options.options)


ENTRY = Entry(OwnClassOptions, own_spec)
