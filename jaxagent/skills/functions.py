"""Skills as Python functions (SAGE, 2512.17102): what an episode defines, how it is handed on, whether it is used.

A function becomes a skill if it is defined at the top level of a cell that ran without error. A later definition of its
name takes its place. It is *used* by a later episode that calls it by name in a cell that ran without error, and has
not bound the name itself before.

    q1   def pay(to): …                     ok             skill pay
         def pay(to, amount): …; 1/0        runtime error  the first one stays
    q2   pay("mezo", 3)                     ok             used
         def pay(to): …                     ok             from here on the name is q2's own

A library is a tuple of functions, in the order of their first definition. A definition whose decorators or defaults
read variables of its episode cannot be made in another one, and is no skill.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from jaxagent.errors import DataError
from jaxagent.skills.code import (
    BUILTINS,
    Def,
    bindings,
    calls,
    imported,
    names,
    read_when_defined,
    source,
    statements,
)
from jaxagent.types import Action, ExecStatus, Trajectory

FUTURE = "from __future__ "
NEVER_RAN = (ExecStatus.SYNTAX_ERROR, ExecStatus.INVALID, ExecStatus.NONE)


@dataclass(frozen=True)
class Function:
    """One skill: its definition as it was written, the imports that it needs, and where it comes from."""

    name: str
    source: str
    imports: tuple[str, ...]
    task_id: str
    scenario_id: str

    @property
    def definition(self) -> str:
        """Code that defines it in any episode."""
        return "\n".join((*self.imports, self.source))

    @property
    def signature(self) -> str:
        """def pay(to, amount=1) -> int"""
        node = self._node
        kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"{kind} {self.name}({ast.unparse(node.args)}){returns}"

    @property
    def docstring(self) -> str:
        return ast.get_docstring(self._node) or ""

    @property
    def _node(self) -> Def:
        (node,) = statements(self.source)
        assert isinstance(node, Def)
        return node


Library = tuple[Function, ...]


def defined(trajectory: Trajectory, known: Library = ()) -> Library:
    """The skills that an episode adds or replaces. known: its library, whose imports its code may count on."""
    found: dict[str, tuple[Def, str, bool]] = {}
    imports = {name: line for function in known for name, line in _imports_of(function).items()}
    for step in trajectory.steps:
        code = step.action.text
        cell = statements(code) if step.exec_status is ExecStatus.OK else ()
        future = any(isinstance(part, ast.ImportFrom) and part.module == "__future__" for part in cell)
        for statement in cell:
            if isinstance(statement, Def):
                found[statement.name] = (statement, source(code, statement), future)
                imports.pop(statement.name, None)
                continue
            for name in bindings(statement):
                found.pop(name, None)
                imports.pop(name, None)
            imports |= imported(statement)
    context = BUILTINS | set(imports) | set(found) | {function.name for function in known}
    task = trajectory.task
    return tuple(
        Function(name, text, _needed(node, imports, future), task.task_id, task.scenario)
        for name, (node, text, future) in found.items()
        if read_when_defined(node, annotations=not future) <= context
    )


def merged(library: Library, newer: Library) -> Library:
    """Both; of a name that both have the newer definition, in the older one's place."""
    return tuple(({function.name: function for function in (*library, *newer)}).values())


def carried(episodes: Sequence[Trajectory]) -> Library:
    """The library after the episodes of a chain, in their order."""
    library: Library = ()
    for episode in episodes:
        library = merged(library, defined(episode, library))
    return library


def used(trajectory: Trajectory, library: Library) -> tuple[str, ...]:
    """Names of the library's functions that the episode uses, in the library's order."""
    called: set[str] = set()
    own: set[str] = set()
    for step in trajectory.steps:
        if step.exec_status in NEVER_RAN:
            continue
        here, own = calls(statements(step.action.text), own)
        # A cell that failed has bound what it could before it failed; its calls may not have come to their end.
        called |= here if step.exec_status is ExecStatus.OK else set()
    return tuple(function.name for function in library if function.name in called)


def definitions(library: Library) -> tuple[Action, ...]:
    """Actions that define the library's functions, one each: one that fails keeps no other from being defined."""
    return tuple(Action(text=function.definition) for function in library)


def library_state(library: Library) -> list[dict[str, Any]]:
    """JSON-serialisable; `read_library` gives an equal library."""
    return [{**asdict(function), "imports": list(function.imports)} for function in library]


def read_library(state: Sequence[Mapping[str, Any]]) -> Library:
    known = {field.name for field in fields(Function)}
    for entry in state:
        if set(entry) != known:
            raise DataError(f"a skill with the fields {sorted(entry)}; expected {sorted(known)}")
    return tuple(Function(**{**entry, "imports": tuple(entry["imports"])}) for entry in state)


def _imports_of(function: Function) -> dict[str, str]:
    return {
        name: line
        for text in function.imports
        for part in statements(text)
        for name, line in imported(part).items()
    }


def _needed(node: Def, imports: Mapping[str, str], future: bool) -> tuple[str, ...]:
    """The imports whose names the function reads; those that change the language come first, as they must."""
    lines = {line for name, line in imports.items() if name in names(node)}
    changes = [f"{FUTURE}import annotations"] if future else []
    return (*changes, *sorted(line for line in lines if not line.startswith(FUTURE)))
