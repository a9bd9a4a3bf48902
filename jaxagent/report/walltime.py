"""Where the wall time of a run went: a table and a PNG.

In: what result.json holds in "seconds", stage -> part -> seconds, which is all of a run (clock.py says what the parts
mean). Of a run that has not ended, the lines of metrics.jsonl: its iterations and evaluations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Table

from jaxagent.clock import COMPILATION, DECODE, ENVIRONMENTS, PYTHON, own_seconds
from jaxagent.errors import DataError
from jaxagent.metrics import Record

Seconds = dict[str, dict[str, float]]  # stage -> part -> seconds

OTHER = "other"
ASKED = ("update", DECODE, ENVIRONMENTS, COMPILATION, PYTHON)
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#332288", "#88ccee")


def wall_seconds(records: Sequence[Record]) -> Seconds:
    """Sums of `seconds/<part>` by the record's `stage`; an evaluation, which has none, belongs to "evaluation"."""
    found: Seconds = {}
    for record in records:
        parts = own_seconds(record)
        if parts:
            stage = found.setdefault(str(record.get("stage", "evaluation")), {})
            for part, seconds in parts.items():
                stage[part] = stage.get(part, 0.0) + seconds
    return found


def shown_seconds(seconds: Seconds, *, least: float = 0.005) -> Seconds:
    """Parts of all stages, the largest first. Those with less than `least` of everything are put together as "other",
    except the ones that are always asked for.
    """
    sums: dict[str, float] = defaultdict(float)
    for parts in seconds.values():
        for part, value in parts.items():
            sums[part] += value
    whole = sum(sums.values())
    small = {part for part, value in sums.items() if value < least * whole and part not in ASKED}
    order = sorted(sums.keys() - small, key=lambda part: -sums[part])
    shown = {stage: {part: parts.get(part, 0.0) for part in order} for stage, parts in seconds.items()}
    if small:
        for stage, parts in seconds.items():
            shown[stage][OTHER] = sum(value for part, value in parts.items() if part in small)
    return shown


def wall_table(seconds: Seconds) -> Table:
    """Seconds by part (rows) and stage (columns), with each part's share of everything."""
    shown = shown_seconds(seconds)
    whole = sum(sum(parts.values()) for parts in shown.values())
    table = Table(title="Where the wall time went (seconds)")
    table.add_column("part", no_wrap=True, min_width=max((len(part) for part in _parts(shown)), default=0))
    for stage in shown:
        table.add_column(stage, justify="right")
    table.add_column("all", justify="right")
    table.add_column("share", justify="right")
    for part in _parts(shown):
        values = [parts[part] for parts in shown.values()]
        share = sum(values) / whole if whole else 0.0
        table.add_row(part, *(f"{value:.1f}" for value in values), f"{sum(values):.1f}", f"{share:.0%}")
    sums = [sum(parts.values()) for parts in shown.values()]
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
    shown = shown_seconds(seconds)
    stages = list(shown)
    left = [0.0] * len(stages)
    for i, part in enumerate(_parts(shown)):
        width = [shown[stage][part] for stage in stages]
        colour = "0.75" if part == OTHER else _COLOURS[i % len(_COLOURS)]
        axis.barh(stages, width, left=left, color=colour, label=f"{part} {sum(width):.1f} s", height=0.65)
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


def _parts(shown: Seconds) -> list[str]:
    return list(next(iter(shown.values()), {}))
