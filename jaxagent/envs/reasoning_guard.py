"""What reasoning-gym's scorers may evaluate of a model's answer: numbers, lists and mathematics, no Python.

Several scorers hand the answer to `eval` or to sympy's `parse_expr`, which is `eval` too: "open('x', 'w')" would run
with the worker's rights, and could read the stored answer from a frame. `guard` replaces both in this process (the
checker's child, judge_process.py). `refuse` names answers that a scorer would pay without a solution.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from typing import Any

LITERALS = (ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.Load)
ARITHMETIC = (ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
FORMULA = (*LITERALS, *ARITHMETIC, ast.Call, ast.Name, ast.keyword)
ROOTS = ("sqrt", "cbrt", "root")  # of sympy's functions that are no classes
LAZY = (
    "Integral",
    "Derivative",
    "Sum",
    "Product",
    "Limit",
    "Subs",
    "integrate",
    "diff",
    "summation",
    "limit",
)
NUMBERS_ONLY = {"countdown": "0123456789 +-*/().", "puzzle24": "0123456789 +-*/()."}


class Unreadable(ValueError):
    """An answer that is not evaluated; the scorer, or its caller, gives what it gives for one it cannot read."""


def guard(package: str) -> None:
    """Replace `eval` in the loaded modules of `package`, and the `eval` behind sympy's parse_expr."""
    from sympy.parsing import sympy_parser

    for name, module in list(sys.modules.items()):
        if name.startswith(f"{package}."):
            module.__dict__["eval"] = evaluate
    sympy_parser.eval_expr = formula  # pyright: ignore[reportAttributeAccessIssue]


def evaluate(source: str) -> Any:
    """A Python literal, or arithmetic on numbers, where a module says `eval(source)`."""
    tree = _parsed(source, (*LITERALS, *ARITHMETIC))
    return eval(compile(tree, "<answer>", "eval"), {"__builtins__": {}})


def formula(code: Any, local_dict: Mapping[str, Any], global_dict: Mapping[str, Any]) -> Any:
    """sympy's `eval_expr`, for the text that it has made of a formula: calls of sympy's classes, and numbers."""
    if not isinstance(code, str):
        raise Unreadable(f"a formula that is {type(code).__name__}")
    names: dict[str, Any] = {}
    for node in ast.walk(_parsed(code, FORMULA)):
        if isinstance(node, ast.Name):
            known = local_dict[node.id] if node.id in local_dict else global_dict.get(node.id)
            if node.id in LAZY or not (_is_sympys(known) or node.id in ROOTS):
                raise Unreadable(f"{node.id!r} in a formula")
            names[node.id] = known
    return eval(code, {"__builtins__": {}, **names})


def refuse(dataset: str, answer: str) -> None:
    """Raises Unreadable for letters where numbers are asked for: sympy takes x/x for 1, which makes any target."""
    allowed = NUMBERS_ONLY.get(dataset)
    if allowed and not re.fullmatch(f"[{re.escape(allowed)}\\s]*", answer, re.ASCII):
        raise Unreadable(f"an answer to {dataset} holds digits, + - * / and parentheses only")


def _parsed(source: str, allowed: tuple[type, ...]) -> ast.Expression:
    tree = ast.parse(source.strip(), mode="eval")
    for node in ast.walk(tree):
        if not isinstance(node, allowed):
            raise Unreadable(f"{type(node).__name__} in an answer")
    return tree


def _is_sympys(value: Any) -> bool:
    from sympy.core.basic import Basic

    return isinstance(value, Basic) or (isinstance(value, type) and issubclass(value, Basic))
