"""What a cell of Python defines, imports and calls, read from its syntax tree. Nothing is run.

A name is followed in the order in which a scope runs: what a statement binds shadows the name in what comes after it,
and in functions that have it as a parameter or a variable of their own.

    pay(3)                  calls pay
    pay = pay(3)            calls pay, then binds it
    def f(pay): pay(3)      calls nothing: it is f's own
    [pay(x) for pay in xs]  the same
"""

from __future__ import annotations

import ast
import builtins
import re
import warnings
from collections.abc import Iterable, Sequence

Def = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
DEEPEST = 150  # levels of nesting that are read; a visitor needs frames of the interpreter for each
LINES = re.compile(r"\r\n|\r|\n")  # what the parser counts as lines; str.splitlines knows more
BUILTINS = frozenset(dir(builtins))


def statements(code: str) -> Sequence[ast.stmt]:
    """The statements of a cell; none if it is no Python, or nested deeper than anybody reads."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of strange escapes in what a model wrote
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    level: list[ast.AST] = [tree]
    for _ in range(DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return tree.body
    return ()


def source(code: str, node: Def) -> str:
    """The definition as it was written, decorators included."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return "\n".join(LINES.split(code)[first - 1 : node.end_lineno])


def imported(statement: ast.stmt) -> dict[str, str]:
    """Name -> the import that binds it.  import os.path, json as j -> {os: import os.path, j: import json as j}."""
    if isinstance(statement, ast.Import):
        return {bound_as(alias): ast.unparse(ast.Import([alias])) for alias in statement.names}
    if isinstance(statement, ast.ImportFrom):
        return {
            bound_as(alias): ast.unparse(ast.ImportFrom(statement.module, [alias], statement.level))
            for alias in statement.names
        }
    return {}


def bound_as(alias: ast.alias) -> str:
    return alias.asname or alias.name.split(".")[0]


def names(*nodes: ast.AST) -> set[str]:
    """Every name that is read anywhere in the nodes."""
    found = (part for node in nodes for part in ast.walk(node))
    return {part.id for part in found if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}


def read_when_defined(node: Def, *, annotations: bool = True) -> set[str]:
    """Names that the definition itself reads, not its body: in decorators, defaults and annotations."""
    parts: list[ast.expr | None] = [*node.decorator_list, *node.args.defaults, *node.args.kw_defaults]
    if annotations:
        parts += [node.returns, *(argument.annotation for argument in _arguments(node.args))]
    return names(*(part for part in parts if part is not None))


def bindings(*nodes: ast.stmt) -> set[str]:
    """Names that the statements bind or delete in their own scope, nested blocks included."""
    return _follow(nodes, flat=True).bound


def calls(nodes: Iterable[ast.stmt], shadowed: Iterable[str] = ()) -> tuple[set[str], set[str]]:
    """(names that are called while nothing shadows them, names that are shadowed after the last statement)."""
    scope = _follow(nodes, shadowed)
    return scope.called, scope.bound


def _follow(nodes: Iterable[ast.AST], bound: Iterable[str] = (), *, flat: bool = False) -> _Scope:
    scope = _Scope(bound, flat)
    for node in nodes:
        scope.visit(node)
    return scope


class _Scope(ast.NodeVisitor):
    """Visits nodes in the order in which they run. `bound`: names bound so far; `called`: free ones called so far.

    flat: bodies of functions and classes, which bind nothing out here, are passed over.
    """

    def __init__(self, bound: Iterable[str] = (), flat: bool = False):
        self.bound, self.called, self.flat = set(bound), set[str](), flat

    def _visit(self, *nodes: ast.AST | None) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def _inside(self, nodes: Sequence[ast.AST], own: Iterable[str] = ()) -> _Scope:
        """Follow a scope of its own."""
        inner = _follow(nodes, self.bound | set(own), flat=self.flat)
        self.called |= inner.called
        return inner

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id not in self.bound:
            self.called.add(node.func.id)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.bound.add(node.id)

    # A value is computed before its target is bound; the fields of these nodes come the other way round.

    def visit_Assign(self, node: ast.Assign) -> None:
        self._visit(node.value, *node.targets)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._visit(node.value, node.target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit(node.annotation, node.value)
        if node.value is not None:  # an annotation alone binds nothing
            self.visit(node.target)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._visit(node.value, node.target)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self._visit(node.iter, node.target, *node.body, *node.orelse)

    visit_AsyncFor = visit_For

    # Names bound by other things than assignment.

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        self.bound |= {bound_as(alias) for alias in node.names}

    visit_ImportFrom = visit_Import

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self.bound |= {node.name} if node.name else set()
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        self.bound |= {node.name} if node.name else set()
        self.generic_visit(node)

    visit_MatchStar = visit_MatchAs

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self.bound |= {node.rest} if node.rest else set()
        self.generic_visit(node)

    # Scopes of their own.

    def visit_FunctionDef(self, node: Def) -> None:
        self._visit(*node.decorator_list, node.args, node.returns)
        self.bound.add(node.name)
        if not self.flat:
            self._inside(node.body, _parameters(node.args) | _own(node.body))

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_arg(self, node: ast.arg) -> None:
        self._visit(node.annotation)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.args)
        if not self.flat:
            self._inside([node.body], _parameters(node.args))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit(*node.decorator_list, *node.bases, *node.keywords)
        if not self.flat:
            self._inside(node.body)
        self.bound.add(node.name)

    def visit_ListComp(self, node: Comprehension) -> None:
        self.visit(node.generators[0].iter)
        own = {name for part in node.generators for name in _follow([part.target]).bound}
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        rest = [part for each in node.generators[1:] for part in (each.iter, *each.ifs)]
        inner = self._inside([*node.generators[0].ifs, *rest, *results], own)
        self.bound |= inner.bound - own  # `:=` binds outside of the comprehension

    visit_SetComp = visit_ListComp
    visit_DictComp = visit_ListComp
    visit_GeneratorExp = visit_ListComp


def _arguments(node: ast.arguments) -> list[ast.arg]:
    extra = (argument for argument in (node.vararg, node.kwarg) if argument is not None)
    return [*node.posonlyargs, *node.args, *node.kwonlyargs, *extra]


def _parameters(node: ast.arguments) -> set[str]:
    return {argument.arg for argument in _arguments(node)}


def _own(body: Sequence[ast.stmt]) -> set[str]:
    """Variables of a function: what it binds anywhere, unless it says that they are not its own."""
    elsewhere = {
        name
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Global | ast.Nonlocal)
        for name in node.names
    }
    return bindings(*body) - elsewhere
