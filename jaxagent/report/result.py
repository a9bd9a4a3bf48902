"""The table that ends a run, from what result.json holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from jaxagent.errors import DataError
from jaxagent.types import Metrics

Result = Mapping[str, Any]  # see `read_result`


def read_result(path: str | Path) -> Result:
    """result.json: "evaluations" is a list of {when, split, mode, metrics}; "minutes", "seed" and counts
    are beside it.
    """
    try:
        result = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); a run writes it when it ends") from error
    if not isinstance(result, dict) or "evaluations" not in result:
        raise DataError(f"{path} is not the result of a run: it has no 'evaluations'")
    return result


def evaluation_rows(result: Result) -> tuple[list[str], dict[tuple[str, str], dict[str, Metrics]]]:
    """(names of the moments, (split, mode) -> moment -> metrics). Evaluations within a stage are left out."""
    moments: list[str] = []
    rows: dict[tuple[str, str], dict[str, Metrics]] = {}
    for item in result["evaluations"]:
        when = item["when"]
        if ":" in when:
            continue
        if when not in moments:
            moments.append(when)
        rows.setdefault((item["split"], item["mode"]), {})[when] = item["metrics"]
    return moments, rows


def final_table(result: Result) -> Table:
    """TGC [95 % interval] and SGC for every split, mode and moment, and the change in TGC from first to last."""
    moments, rows = evaluation_rows(result)
    solved = "Tasks solved, TGC [95 % interval] / scenarios solved, SGC (percent)"
    table = Table(title=solved if rows else "No evaluation at the start or a stage's end")
    for name in ("split", "mode"):
        table.add_column(name)
    for name in ("tasks", *moments, "change"):
        table.add_column(name, justify="right")
    for (split, mode), found in rows.items():
        scores = [found[when]["tgc"] for when in moments if "tgc" in found.get(when, {})]
        change = f"{scores[-1] - scores[0]:+.1f}" if len(scores) > 1 else ""
        tasks = max((metrics.get("tasks", 0.0) for metrics in found.values()), default=0.0)
        cells = (score_text(found.get(when, {})) for when in moments)
        table.add_row(split, mode, f"{tasks:.0f}", *cells, change)
    table.caption = summary(result)
    return table


def score_text(metrics: Metrics) -> str:
    """ "92.5 [88–98] / 80.0"; empty without an evaluation."""
    if "tgc" not in metrics:
        return ""
    text = f"{metrics['tgc']:.1f}"
    if "tgc_low" in metrics and "tgc_high" in metrics:
        text += f" [{metrics['tgc_low']:.0f}–{metrics['tgc_high']:.0f}]"
    return text + (f" / {metrics['sgc']:.1f}" if "sgc" in metrics else "")


def summary(result: Result) -> str:
    """One line of what the run cost; only what the result holds."""
    forms = {
        "minutes": "{:.1f} minutes",
        "cpu_seconds": "{:.0f} CPU-seconds",
        "iterations": "iterations: {}",
        "compilations": "compilations: {}",
        "compile_seconds": "compiling {:.0f} s",
        "seed": "seed {}",
        "commit": "commit {}",
    }
    return ", ".join(
        form.format(result[name]) for name, form in forms.items() if result.get(name) is not None
    )
