"""The learning curve of a run as a PNG: one panel for each question, only those that the record can answer.

In: lines of metrics.jsonl. Lines of training metrics are thin where there are many and carry a running mean;
evaluations are points with their 95 % interval. Stage changes are dashed lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from jaxagent.errors import DataError
from jaxagent.metrics import Record, lookup

_EVAL = re.compile(r"^eval/(.+)/(greedy|sampled)/tgc$")
# Told apart by colour-blind eyes too.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


@dataclass(frozen=True)
class Panel:
    """`lines`: metric (found by `lookup`) -> legend. `unit` names the y axis; shares go from 0 to 1."""

    title: str
    lines: dict[str, str]
    unit: str = ""
    share: bool = False
    evals: bool = False


PANELS = (
    Panel("Return of training episodes", {"reward/mean": "return"}, "return"),
    Panel("Success", {"rollout/success": "training"}, "share of tasks", share=True, evals=True),
    Panel("Failed steps", {"rollout/exec_fail": "training"}, "share of steps", share=True),
    Panel("Entropy of the policy", {"entropy": "per token"}, "nats"),
    Panel("Length of an episode", {"rollout/turns": "turns"}, "turns"),
    Panel("Groups without a signal", {"group/zero_std_frac": "equal returns"}, "share of groups", share=True),
    Panel("Loss of imitation", {"ce/nll": "per token"}, "nats"),
    Panel("Gradient norm", {"grad_norm": "before clipping"}),
)


def learning_curves(records: Sequence[Record], path: str | Path, *, title: str = "") -> Path:
    """Draw what the record holds of `PANELS`; returns the path written."""
    panels = [panel for panel in PANELS if _has_data(panel, records)]
    if not panels:
        raise DataError(
            "the record holds nothing to draw; expected metrics.jsonl of a run that made an iteration"
        )
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.1 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = np.atleast_1d(figure.subplots(rows, columns)).ravel()
    for axis, panel in zip(axes, panels):
        _draw(axis, panel, records)
    for axis in axes[len(panels) :]:
        axis.remove()
    if title:
        figure.suptitle(title, fontsize=12)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path


def series(records: Sequence[Record], name: str) -> tuple[np.ndarray, np.ndarray]:
    """(step, value) where the metric was recorded and finite."""
    found = [(record["step"], value) for record in records if (value := lookup(record, name)) is not None]
    return np.array([step for step, _ in found], float), np.array([value for _, value in found], float)


def eval_series(records: Sequence[Record]) -> dict[str, np.ndarray]:
    """Name ("split, mode") -> rows (step, TGC, low, high) in shares of 1."""
    found: dict[str, list[list[float]]] = {}
    for record in records:
        for key, value in record.items():
            if (match := _EVAL.match(key)) is None or value is None:
                continue
            low, high = record.get(f"{key}_low", value), record.get(f"{key}_high", value)
            row = [record["step"], value / 100, low / 100, high / 100]
            found.setdefault(f"{match[1]}, {match[2]}", []).append(row)
    return {name: np.array(rows) for name, rows in found.items()}


def running_mean(value: np.ndarray, window: int) -> np.ndarray:
    """Mean over the last `window` values, fewer at the start."""
    total = np.cumsum(np.concatenate([[0.0], value]))
    end = np.arange(1, value.size + 1)
    start = np.maximum(end - window, 0)
    return (total[end] - total[start]) / (end - start)


def _has_data(panel: Panel, records: Sequence[Record]) -> bool:
    trained = any(series(records, name)[0].size for name in panel.lines)
    return trained or (panel.evals and bool(eval_series(records)))


def _draw(axis: Axes, panel: Panel, records: Sequence[Record]) -> None:
    colours = iter(_COLOURS * 4)
    for name, label in panel.lines.items():
        step, value = series(records, name)
        if step.size:
            _draw_training(axis, step, value, colour=next(colours), label=label)
    for name, row_X4 in eval_series(records).items() if panel.evals else ():
        step, value, low, high = row_X4.T
        bars = np.stack([np.maximum(value - low, 0), np.maximum(high - value, 0)])
        style = {"color": next(colours), "marker": "o", "ms": 4, "lw": 1.4, "capsize": 2}
        axis.errorbar(step, value, yerr=bars, label=name, **style)
    _mark_stages(axis, records)
    axis.set_title(panel.title, fontsize=10)
    axis.set_xlabel("iteration of the run, all stages", fontsize=8)
    axis.set_ylabel(panel.unit, fontsize=8)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    if panel.share:
        axis.set_ylim(-0.03, 1.03)
    axis.legend(fontsize=7, frameon=False)


def _draw_training(axis: Axes, step: np.ndarray, value: np.ndarray, *, colour: str, label: str) -> None:
    """A line; from 20 values on, a thin one under its running mean."""
    if step.size < 20:
        axis.plot(step, value, color=colour, lw=1.2, label=label)
        return
    window = max(3, step.size // 20)
    axis.plot(step, value, color=colour, lw=0.8, alpha=0.35)
    axis.plot(step, running_mean(value, window), color=colour, lw=1.8, label=f"{label} (mean of {window})")


def _mark_stages(axis: Axes, records: Sequence[Record]) -> None:
    """A dashed line where a stage begins that is not the first, with its name."""
    previous = None
    for record in records:
        stage = record.get("stage")
        if stage is None or stage == previous:
            continue
        if previous is not None:
            axis.axvline(record["step"] - 0.5, color="0.5", lw=0.8, ls="--")
            axis.text(
                record["step"],
                1.0,
                stage,
                transform=axis.get_xaxis_transform(),
                fontsize=7,
                va="top",
                color="0.4",
            )
        previous = stage
