"""The table of a paired comparison (eval/compare.py) on the console, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from jaxagent.eval.compare import Comparison, Paired

PERCENT = ("success", "completion")


def show_comparison(
    comparisons: Sequence[Comparison], a: Path, b: Path, console: Console | None = None
) -> None:
    console = console or Console()
    console.print(f"A: {a}\nB: {b}", highlight=False, soft_wrap=True)
    for comparison in comparisons:
        console.print(comparison_table(comparison))


def comparison_table(comparison: Comparison) -> Table:
    """One row a measure: both means, B - A with its interval, the p-value, tasks won and lost."""
    modes = {comparison.mode_a, comparison.mode_b}
    mode = modes.pop() if len(modes) == 1 else f"A {comparison.mode_a}, B {comparison.mode_b}"
    table = Table(title=f"{comparison.split} ({mode}): B - A over {comparison.tasks} tasks of both")
    for number, name in enumerate(
        ("measure", "A", "B", "B - A [95 % interval]", "p", "B better / worse", "test")
    ):
        table.add_column(name, justify="right" if 0 < number < 6 else "left")
    for measure in comparison.measures:
        table.add_row(*_row(measure))
    if comparison.only_a or comparison.only_b:
        table.caption = f"left out: {comparison.only_a} tasks of A only, {comparison.only_b} of B only"
    return table


def _row(measure: Paired) -> list[str]:
    share = measure.name in PERCENT
    factor, digits = (100, 1) if share else (1, 3)
    a, b, difference, low, high = (
        factor * value for value in (measure.a, measure.b, measure.difference, measure.low, measure.high)
    )
    return [
        f"{measure.name}{' (%)' if share else ''}",
        f"{a:.{digits}f}",
        f"{b:.{digits}f}",
        f"{difference:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]",
        f"{measure.p:.3g}",
        f"{measure.wins} / {measure.losses}",
        measure.test,
    ]
