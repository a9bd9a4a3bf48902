"""The outcome of a run in one file, result.json, and as the table that ends it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.table import Table

from jaxagent.errors import DataError
from jaxagent.types import Metrics


@dataclass(frozen=True)
class RunResult:
    """before, after: "split/mode" -> the evaluation's metrics (TGC and SGC in percent, with `_low` and
    `_high`).
    """

    before: Mapping[str, Metrics]
    after: Mapping[str, Metrics]
    minutes: float
    seed: int
    cpu_seconds: float = 0.0
    compilations: int = 0
    compile_seconds: float = 0.0
    iterations: int = 0
    commit: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)

    def write(self, path: str | Path) -> None:
        Path(path).write_text(json.dumps(asdict(self), indent=1, allow_nan=False) + "\n")


def read_result(path: str | Path) -> RunResult:
    try:
        return RunResult(**json.loads(Path(path).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            f"{path} is not the result of a run ({error}); a run writes it when it ends"
        ) from error


def commit_hash() -> str:
    """The commit of the source tree that the package lies in, "-dirty" if changed; "" for an installed
    package.
    """
    here = Path(__file__).resolve().parents[2]
    if not (here / ".git").exists():
        return ""
    try:
        asked = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""  # no git on this machine: the commit is a note, not a need
    return asked.stdout.strip()


def final_table(result: RunResult) -> Table:
    """TGC and SGC before and after, for every evaluation, with the change in points."""
    table = Table(title="Tasks solved, percent [95 % interval]")
    for name in ("split", "mode", "tasks"):
        table.add_column(name, justify="right" if name == "tasks" else "left")
    for name in ("TGC before", "TGC after", "change", "SGC before", "SGC after"):
        table.add_column(name, justify="right")
    for name in [*result.before, *(name for name in result.after if name not in result.before)]:
        before, after = result.before.get(name, {}), result.after.get(name, {})
        split, _, mode = name.rpartition("/")
        change = f"{after['tgc'] - before['tgc']:+.1f}" if "tgc" in before and "tgc" in after else ""
        tasks = (after or before).get("tasks")
        table.add_row(
            split,
            mode,
            "" if tasks is None else f"{tasks:.0f}",
            _percent(before, "tgc"),
            _percent(after, "tgc"),
            change,
            _percent(before, "sgc"),
            _percent(after, "sgc"),
        )
    table.caption = (
        f"{result.minutes:.1f} minutes, {result.cpu_seconds:.0f} CPU-seconds, {result.iterations} iterations"
        f", {result.compilations} compilations ({result.compile_seconds:.0f} s), seed {result.seed}"
        + (f", commit {result.commit}" if result.commit else "")
    )
    return table


def _percent(metrics: Metrics, name: str) -> str:
    if name not in metrics:
        return ""
    text = f"{metrics[name]:.1f}"
    low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
    return text if low is None or high is None else f"{text} [{low:.0f}–{high:.0f}]"
