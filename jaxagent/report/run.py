"""The report of a run folder: pictures, one HTML page, and the tables on the console.

    run_dir/  metrics.jsonl  alarms.jsonl  result.json  trajectories.jsonl  ->  run_dir/report/  curves.png
    wall_time.png  index.html

A run that has not ended has no result.json yet; its report is made from what there is.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from jaxagent.errors import DataError
from jaxagent.metrics import read_metrics
from jaxagent.report.curves import learning_curves
from jaxagent.report.html import write_page
from jaxagent.report.result import final_table, read_result
from jaxagent.report.trajectories import read_trajectories
from jaxagent.report.walltime import wall_chart, wall_seconds, wall_table


def write_report(folder: Path, console: Console | None = None) -> Path:
    """Draw and print what the folder holds; returns the HTML page."""
    console = console or Console()
    if not (folder / "metrics.jsonl").is_file():
        raise DataError(f"{folder} holds no metrics.jsonl; expected the folder of a run")
    records = read_metrics(folder / "metrics.jsonl")
    out = folder / "report"
    pictures = [learning_curves(records, out / "curves.png", title=folder.name)]
    result = read_result(folder / "result.json") if (folder / "result.json").is_file() else None
    seconds = (result or {}).get("seconds") or wall_seconds(records)
    if seconds:
        pictures.append(wall_chart(seconds, out / "wall_time.png"))
        console.print(wall_table(seconds))
    if result is not None:
        console.print(final_table(result))
    alarms = read_metrics(folder / "alarms.jsonl") if (folder / "alarms.jsonl").is_file() else []
    page = write_page(
        out / "index.html",
        title=folder.name,
        pictures=pictures,
        result=result,
        alarms=alarms,
        trajectories=read_trajectories(folder / "trajectories.jsonl"),
    )
    console.print(f"report: {page}", soft_wrap=True)
    return page
