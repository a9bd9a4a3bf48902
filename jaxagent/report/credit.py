"""The page of `jaxagent credit`: a picture, a table of methods, and for each group a matrix of steps and methods.

In: a `Rescored`. Out: one HTML file that can be mailed, and a table on the console. Text of the policy and of
environments is escaped, it may hold anything.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from jaxagent.data.rollout_store import RolloutStore
from jaxagent.errors import DataError
from jaxagent.report.credit_groups import group_matrix
from jaxagent.report.credit_summary import (
    SUMMARY_HEAD,
    correlations,
    credit_chart,
    disagreement,
    shown_groups,
    signed,
    summary_rows,
)
from jaxagent.report.html import picture, table, write_parts
from jaxagent.rescore import Method, Rescored, only, rescore
from jaxagent.stage import Returns

SHOWN = 40  # groups on the page

_STYLE = """<style>
body { max-width: 1280px; } .groups td, .groups th { vertical-align: top; padding: .15em .5em; }
.groups td:nth-child(n), .groups th:nth-child(n) { text-align: left; }
.groups td.a, .groups th.a { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.groups tr.episode td { background: #f2f2f2; border-top: 2px solid #bbb; font-weight: 600; }
.groups details { border: 0; margin: 0; padding: 0; } .groups code { font: 12.5px ui-monospace, monospace; }
.groups table { width: 100%; } .groups td.text { width: 55%; } .fail { color: #b34700; white-space: nowrap; }
.groups pre { max-height: 18em; overflow: auto; margin: .2em 0; } .groups p { margin: .4em 0 0; }
.groups th.a { white-space: normal; max-width: 9em; }
svg.strip { display: block; margin: .3em 0; max-width: 100%; height: auto; } table { margin: .6em 0; }
</style>"""


def report_credit(
    store: RolloutStore,
    methods: Sequence[Method],
    reward: Returns | None,
    out: Path,
    *,
    iteration: int | None = None,
    task: str | None = None,
) -> Path:
    """Score an iteration of the store again (the last, if none is named), print the summary and write the page."""
    if not store.entries:
        raise DataError(f"{store.path} holds no rollouts yet")
    chosen = store.iterations[-1] if iteration is None else iteration
    if chosen not in store.iterations:
        raise DataError(f"iteration {chosen} is not in {store.path}; stored: {_spans(store.iterations)}")
    scored = rescore(store.groups(chosen), methods, reward)
    if not scored.methods:
        reasons = "; ".join(f"{label}: {reason}" for label, reason in scored.failed.items())
        raise DataError(f"{store.path}: no method that was asked for can be computed from it: {reasons}")
    scored = scored if task is None else only(scored, task)
    episodes = sum(len(group.trajectories) for group in scored.groups)
    stage = next(entry.stage for entry in store.entries if entry.iteration == chosen)
    about = (
        f"Iteration {chosen} (stage {stage}) of {store.path}: {len(scored.groups)} groups, {episodes} episodes, "
        f"{len(scored.rows)} steps."
    )
    console = Console()
    console.print(about, soft_wrap=True, highlight=False)
    show_credit(scored, console)
    page = write_credit_page(scored, out, title="The same rollouts, credited by several methods", about=about)
    console.print(f"page: {page}", soft_wrap=True)
    return page


def write_credit_page(scored: Rescored, path: Path, *, title: str, about: str) -> Path:
    """The page; the most disputed groups come first, and no more than SHOWN of them."""
    parts = [_STYLE, f"<h1>{escape(title)}</h1>", f"<p>{escape(about)}</p>"]
    with tempfile.TemporaryDirectory() as folder:
        parts += [picture(credit_chart(scored, Path(folder) / "credit.png"))]
    parts += [table(SUMMARY_HEAD, summary_rows(scored)), _notes(scored)]
    shown, apart = shown_groups(scored, SHOWN), disagreement(scored)
    bodies = [group_matrix(scored, g, apart[g], opened=place == 0) for place, g in enumerate(shown)]
    parts += [
        "<h2>Step by step</h2>",
        _legend(scored, len(shown)),
        f"<div class=groups>{''.join(bodies)}</div>",
    ]
    return write_parts(path, title=title, parts=parts)


def show_credit(scored: Rescored, console: Console) -> None:
    """The summary on the console, narrow enough for 80 columns."""
    made = Table(
        title="Percent of steps raised and lowered, and mean advantages", box=SIMPLE, padding=(0, 1, 0, 0)
    )
    heads = (
        "method",
        "up",
        "down",
        "|A|",
        "solved\nran",
        "solved\nfailed",
        "unsolved\nran",
        "unsolved\nfailed",
        "r to\nfirst",
    )
    for place, column in enumerate(heads):
        made.add_column(column, justify="right" if place else "left", no_wrap=place > 0)
    r_MM = correlations(scored.advantage_XM)
    for place, (method, up, _, down, size, _, *means) in enumerate(summary_rows(scored)):
        made.add_row(method, up, down, size, *means, signed(float(r_MM[place, 0])))
    console.print(made)
    for method, reason in scored.failed.items():
        console.print(f"{method}: {reason}", markup=False, soft_wrap=True)


def _notes(scored: Rescored) -> str:
    notes = [
        f"<b>{escape(name)}</b> is not shown: {escape(reason)}" for name, reason in scored.failed.items()
    ]
    notes += [
        f"<b>{escape(name)}</b> credits single tokens; a step shows their mean" for name in scored.finer
    ]
    return f"<ul>{''.join(f'<li>{note}</li>' for note in notes)}</ul>" if notes else ""


def _legend(scored: Rescored, shown: int) -> str:
    some = f"The {shown} most disputed of {len(scored.groups)}" if shown < len(scored.groups) else "All"
    return (
        f"<p class=note>{some} groups, the most disputed first. <b class=good>Green</b> raises the probability of a "
        "step, <b class=bad>orange</b> lowers it, relative to the method's own largest advantage: methods differ in "
        "scale. A dash: the method leaves the episode out. The strip under a group's name has a column for each step, "
        "the episodes side by side (dark bar: solved), and a row for each method. Click a step to read it.</p>"
    )


def _spans(numbers: Sequence[int]) -> str:
    """ "0-3, 8" of 0, 1, 2, 3, 8."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in spans)
