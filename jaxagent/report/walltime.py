"""Where the wall time of a run went: a table and a PNG.

In: lines of metrics.jsonl with `seconds/<part>`, and `seconds/total` if the parts do not cover the iteration;
what is left of it is shown as "rest (Python)". A part may be divided: `seconds/collect/decode` lies within
`seconds/collect`. A division is shown by its own name, added up over the parts it occurs in:

    collect 5, collect/decode 3, update 4, update/compilation 1, total 10
    ->  decode 3, collect 2, update 3, compilation 1, rest 1
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Table

from jaxagent.errors import DataError
from jaxagent.metrics import Record

Seconds = dict[str, dict[str, float]]  # stage -> part -> seconds

REST = "rest (Python)"
_PREFIX, _TOTAL = "seconds/", "seconds/total"
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#332288", "#88ccee")


def wall_seconds(
    records: Sequence[Record], *, extra: Mapping[str, Mapping[str, float]] | None = None
) -> Seconds:
    """Sum parts by the record's `stage` label; a line without one (an evaluation) belongs to the stage
    before.

    extra: stages that were not logged, e.g. {"start": {"imports": 3.0}}.
    """
    found: dict[str, dict[str, float]] = {stage: dict(parts) for stage, parts in (extra or {}).items()}
    name = "start"
    for record in records:
        parts = own_seconds(record)
        total = record.get(_TOTAL)
        if total is not None:
            parts[REST] = max(0.0, float(total) - sum(parts.values()))
        name = str(record.get("stage", name))
        if parts:
            stage = found.setdefault(name, {})
            for part, seconds in parts.items():
                stage[part] = stage.get(part, 0.0) + seconds
    return found


def own_seconds(record: Record) -> dict[str, float]:
    """Seconds of one line by part, without those of its divisions."""
    whole = {
        key.removeprefix(_PREFIX): float(value)
        for key, value in record.items()
        if key.startswith(_PREFIX) and key != _TOTAL and value is not None
    }
    own: dict[str, float] = defaultdict(float)
    for path, seconds in whole.items():
        inside = sum(value for other, value in whole.items() if other.rpartition("/")[0] == path)
        own[path.rpartition("/")[2]] += max(0.0, seconds - inside)
    return dict(own)


def part_names(seconds: Seconds) -> list[str]:
    """Parts of all stages, the largest first, the rest last."""
    sums: dict[str, float] = defaultdict(float)
    for parts in seconds.values():
        for part, value in parts.items():
            sums[part] += value
    return sorted(sums, key=lambda part: (part == REST, -sums[part]))


def wall_table(seconds: Seconds) -> Table:
    """Seconds by part (rows) and stage (columns), with each part's share of everything."""
    whole = sum(sum(parts.values()) for parts in seconds.values())
    table = Table(title="Where the wall time went (seconds)")
    table.add_column("part")
    for stage in seconds:
        table.add_column(stage, justify="right")
    table.add_column("all", justify="right")
    table.add_column("share", justify="right")
    for part in part_names(seconds):
        values = [parts.get(part, 0.0) for parts in seconds.values()]
        share = sum(values) / whole if whole else 0.0
        table.add_row(part, *(f"{value:.1f}" for value in values), f"{sum(values):.1f}", f"{share:.0%}")
    sums = [sum(parts.values()) for parts in seconds.values()]
    table.add_section()
    table.add_row("all", *(f"{value:.1f}" for value in sums), f"{whole:.1f}", "100%")
    return table


def wall_chart(seconds: Seconds, path: str | Path, *, title: str = "Where the wall time went") -> Path:
    """A bar for each stage, divided into parts."""
    if not seconds:
        raise DataError(
            "the record holds no seconds/<part>; expected metrics.jsonl of a run that made an iteration"
        )
    figure = Figure(figsize=(9, 1.6 + 0.55 * len(seconds)), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    stages = list(seconds)
    left = [0.0] * len(stages)
    for i, part in enumerate(part_names(seconds)):
        width = [seconds[stage].get(part, 0.0) for stage in stages]
        colour = "0.75" if part == REST else _COLOURS[i % len(_COLOURS)]
        axis.barh(stages, width, left=left, color=colour, label=f"{part} {sum(width):.0f} s", height=0.65)
        left = [a + b for a, b in zip(left, width)]
    axis.invert_yaxis()
    axis.set_xlabel("seconds")
    axis.set_title(title, fontsize=11)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path
