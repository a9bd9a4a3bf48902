"""What several methods credit, in numbers and one picture: signs, situations, agreement.

In: a `Rescored`. Numbers are over the steps that a method credits at all; a method without any has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from jaxagent.rescore import Rescored

RAISES, LOWERS = "#009e73", "#d55e00"  # told apart by colour-blind eyes too
DIVERGING = LinearSegmentedColormap.from_list("credit", [LOWERS, "#ffffff", RAISES]).with_extremes(
    bad="#eeeeee"
)
TINY = 1e-9  # of an advantage; below it there is no sign
SITUATIONS = ("solved, ran", "solved, failed", "unsolved, ran", "unsolved, failed")

SUMMARY_HEAD = ("method", "raises", "leaves", "lowers", "mean |A|", "largest |A|", *SITUATIONS)


def signs(advantage_X: Float[np.ndarray, "X"]) -> tuple[float, float, float]:
    """Shares of the credited steps that are raised, left alone, lowered."""
    known_X = advantage_X[np.isfinite(advantage_X)]
    if not known_X.size:
        return 0.0, 0.0, 0.0
    up, down = float((known_X > TINY).mean()), float((known_X < -TINY).mean())
    return up, abs(1 - up - down), down


def situations(scored: Rescored) -> list[Bool[np.ndarray, "X"]]:
    """Which steps are of each of SITUATIONS."""
    solved_X = np.array([row.trajectory.success for row in scored.rows], bool)
    failed_X = np.array([row.step.exec_status.failed for row in scored.rows], bool)
    return [solved_X & ~failed_X, solved_X & failed_X, ~solved_X & ~failed_X, ~solved_X & failed_X]


def mean_of(advantage_X: Float[np.ndarray, "X"]) -> float:
    """Mean over the credited ones; nan if there is none."""
    known_X = advantage_X[np.isfinite(advantage_X)]
    return float(known_X.mean()) if known_X.size else np.nan


def correlations(advantage_XM: Float[np.ndarray, "X M"]) -> Float[np.ndarray, "M M"]:
    """Pearson's r over the steps that both methods credit; nan where one of them does not vary."""
    methods = advantage_XM.shape[1]
    r_MM = np.full((methods, methods), np.nan)
    for i in range(methods):
        for j in range(methods):
            both = advantage_XM[np.isfinite(advantage_XM[:, [i, j]]).all(axis=1)][:, [i, j]]
            if len(both) > 1 and (both.std(axis=0) > TINY).all():
                r_MM[i, j] = np.corrcoef(both.T)[0, 1]
    return r_MM


def scales(advantage_XM: Float[np.ndarray, "X M"]) -> Float[np.ndarray, "M"]:
    """The largest |A| of each method, by which its colours are chosen; 1 where all are 0."""
    largest_M = np.abs(np.nan_to_num(advantage_XM)).max(axis=0, initial=0.0)
    return np.where(largest_M > TINY, largest_M, 1.0)


def disagreement(scored: Rescored) -> list[float]:
    """How far apart the methods are on each group's steps: the mean over steps of the std across methods.

    Each method is first divided by its root mean square over all steps: the size of its advantages says nothing.
    """
    known_XM = np.nan_to_num(scored.advantage_XM)
    size_M = np.sqrt((known_XM**2).mean(axis=0)) if len(known_XM) else np.ones(known_XM.shape[1])
    even_XM = known_XM / np.where(size_M > TINY, size_M, 1.0)
    apart_X = even_XM.std(axis=1) if even_XM.shape[1] else np.zeros(len(even_XM))
    number_X = np.array([row.group for row in scored.rows], int)
    return [
        float(apart_X[number_X == g].mean()) if (number_X == g).any() else 0.0
        for g in range(len(scored.groups))
    ]


def summary_rows(scored: Rescored) -> list[list[str]]:
    """One row a method, under SUMMARY_HEAD."""
    where = situations(scored)
    rows = []
    for method, advantage_X in zip(scored.methods, scored.advantage_XM.T):
        size_X = np.abs(advantage_X)
        shares = [f"{100 * share:.0f} %" for share in signs(advantage_X)]
        largest = float(np.nan_to_num(size_X).max(initial=0.0))
        means = [signed(mean_of(advantage_X[mask_X])) for mask_X in where]
        rows.append([method, *shares, f"{mean_of(size_X):.2f}", f"{largest:.2f}", *means])
    return rows


def signed(value: float) -> str:
    """ "+0.52", or a dash for what is not there."""
    return "–" if not np.isfinite(value) else f"{value:+.2f}" if abs(value) > 0.005 else "0"


# --- the picture ----------------------------------------------------------------------------------------------


def credit_chart(scored: Rescored, path: Path) -> Path:
    """Three panels: signs, mean credit by situation, agreement of the methods."""
    height = 1.9 + 0.42 * max(len(scored.methods), 3)
    figure = Figure(figsize=(13.5, height), layout="constrained")
    FigureCanvasAgg(figure)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.0, 1.05, 1.0))
    _signs(left, scored)
    _situations(middle, scored)
    _agreement(right, scored)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path


def _signs(axis: Axes, scored: Rescored) -> None:
    """Bars of the shares: lowered, left alone, raised."""
    for place, advantage_X in enumerate(scored.advantage_XM.T):
        up, _, down = signs(advantage_X)
        axis.barh(place, 100, color="#e4e4e4", height=0.66)
        axis.barh(place, 100 * down, color=LOWERS, height=0.66)
        axis.barh(place, 100 * up, left=100 - 100 * up, color=RAISES, height=0.66)
        for share, x in ((down, 50 * down), (up, 100 - 50 * up)):
            if share > 0.08:
                axis.text(x, place, f"{100 * share:.0f}", ha="center", va="center", fontsize=8, color="white")
    axis.set_yticks(range(len(scored.methods)), list(map(short, scored.methods)), fontsize=9)
    axis.set_ylim(len(scored.methods) - 0.4, -0.6)
    axis.set_xlim(0, 100)
    axis.set_xlabel("percent of steps: lowered, left alone, raised", fontsize=8)
    axis.set_title("Which way", fontsize=10)
    axis.spines[["top", "right", "left"]].set_visible(False)


def _situations(axis: Axes, scored: Rescored) -> None:
    where = situations(scored)
    mean_MC = np.array([[mean_of(a_X[mask_X]) for mask_X in where] for a_X in scored.advantage_XM.T])
    mean_MC = mean_MC.reshape(len(scored.methods), len(SITUATIONS))
    _heat(axis, mean_MC, mean_MC / scales(mean_MC.T)[:, None])
    counts = [int(mask_X.sum()) for mask_X in where]
    names = [f"{name.replace(', ', chr(10))}\n({count})" for name, count in zip(SITUATIONS, counts)]
    axis.set_xticks(range(len(names)), names, fontsize=8)
    axis.set_yticks(range(len(scored.methods)), list(map(short, scored.methods)), fontsize=9)
    axis.set_title("Mean credit of a step, by its episode and its execution", fontsize=10)


def _agreement(axis: Axes, scored: Rescored) -> None:
    """Coloured from the lowest correlation to 1, for all may be close to 1; shades of orange if some are negative."""
    r_MM = correlations(scored.advantage_XM)
    low = min(float(np.nan_to_num(r_MM, nan=1.0).min(initial=1.0)), 0.999)
    _heat(axis, r_MM, r_MM if low < 0 else (r_MM - low) / (1 - low))
    axis.set_xticks(
        range(len(scored.methods)), list(map(short, scored.methods)), fontsize=8, rotation=30, ha="right"
    )
    axis.set_yticks(range(len(scored.methods)), list(map(short, scored.methods)), fontsize=9)
    axis.set_title("Agreement: correlation over steps", fontsize=10)


def _heat(axis: Axes, value_RC: np.ndarray, colour_RC: np.ndarray) -> None:
    """Squares of diverging colour with their numbers."""
    if value_RC.size:
        axis.imshow(np.ma.masked_invalid(0.8 * colour_RC), cmap=DIVERGING, vmin=-1, vmax=1, aspect="auto")
    for (row, column), value in np.ndenumerate(value_RC):
        axis.text(column, row, signed(float(value)), ha="center", va="center", fontsize=8, color="#222222")
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def short(label: str, length: int = 26) -> str:
    return label if len(label) <= length else label[: length - 1] + "…"


def shown_groups(scored: Rescored, limit: int) -> Sequence[int]:
    """Numbers of the groups that say most about the methods, the most disputed first."""
    apart = disagreement(scored)
    return sorted(range(len(apart)), key=lambda g: -apart[g])[: limit or None]
