"""What benchmarks/methods.py shows: a table with intervals over seeds, the claims, two pictures.

In: finished run folders. Out: table.md, results.json, methods.png (success by method), curves.png (training success).
Intervals are Student's t over seeds at 95 %. A claim compares the seeds in pairs: it holds, or does
not, if the one-sided 95 % interval of the difference excludes 0.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import matplotlib
import numpy as np

from jaxagent.eval.ways import mode_in
from jaxagent.metrics import read_metrics
from jaxagent.records import Record

matplotlib.use("Agg")
import matplotlib.pyplot as plt

GOAL, WINDOW = 0.8, 5  # iterations until the mean training success of so many iterations reaches the goal
SPLITS = ("test_normal", "test_challenge")
MEASURES = ("exec_fail", "turns", "action_tokens")  # of sampled rollouts on test-normal
BEFORE = ", warm start"  # ends the name of a method whose own warm start is meant
# Quantiles 0.975 and 0.95 of Student's t by degrees of freedom: scipy is no dependency.
T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
T95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)


class Claim(Record):
    """`better` has more of `measure` than `worse` (less, with `lower`), sampled on `split`; tgc is in percent.

    "NAME, warm start" is a method at the first full evaluation of its runs, where they have a warm start of their own.
    """

    name: str
    says: str
    better: str
    worse: str
    measure: str = "tgc"
    split: str = "test_normal"
    lower: bool = False


@dataclass(frozen=True)
class Outcome:
    """One run: measures by "split/mode" at its first (if there were more) and last full evaluation, training success by
    iteration, CPU seconds."""

    before: Mapping[str, Mapping[str, float]]
    after: Mapping[str, Mapping[str, float]]
    success: Sequence[float]
    cpu_seconds: float

    @property
    def iterations_to_goal(self) -> float:
        """Infinite if the goal was not reached."""
        if len(self.success) < WINDOW:
            return math.inf
        mean = np.convolve(self.success, np.ones(WINDOW) / WINDOW, mode="valid")
        reached = np.flatnonzero(mean >= GOAL)
        return float(reached[0] + WINDOW) if len(reached) else math.inf


def read_outcome(folder: Path) -> Outcome:
    result = json.loads((folder / "result.json").read_text())
    records = read_metrics(folder / "metrics.jsonl")
    played = [record for record in records if "rollout/success" in record]
    # Of the last stage: before it only a value head may have learnt.
    success = [record["rollout/success"] for record in played if record["stage"] == played[-1]["stage"]]
    return Outcome(result["before"], result["after"], success, result["cpu_seconds"])


def interval(values: Sequence[float], quantiles: Sequence[float] = T975) -> tuple[float, float]:
    """Mean and half width; the width is infinite for one seed."""
    n = len(values)
    mean = float(np.mean(values))
    if n < 2:
        return mean, math.inf
    t = quantiles[min(n - 2, len(quantiles) - 1)]
    return mean, t * float(np.std(values, ddof=1)) / math.sqrt(n)


def measured(outcomes: Mapping[int, Outcome], split: str, mode: str, measure: str) -> dict[int, float]:
    """The measure by seed, where it was taken."""
    found = {seed: o.after.get(f"{split}/{mode}", {}) for seed, o in outcomes.items()}
    return {seed: metrics[measure] for seed, metrics in found.items() if measure in metrics}


def verdict(claim: Claim, outcomes: Mapping[str, Mapping[int, Outcome]]) -> str:
    """Holds, does not hold, or is undecided: the paired difference over seeds and its interval."""
    runs = [_named(outcomes, name) for name in (claim.better, claim.worse)]
    if not all(runs):
        return "not run"
    high, low = (measured(by_seed, claim.split, "sampled", claim.measure) for by_seed in runs)
    sign = -1.0 if claim.lower else 1.0
    pairs = [sign * (high[seed] - low[seed]) for seed in high if seed in low]
    if not pairs:
        return "not measured"
    mean, half = interval(pairs, T95)
    word = "holds" if mean - half > 0 else "does not hold" if mean + half < 0 else "undecided"
    shown = f"{word}: {round(sign * mean, 4) + 0.0:+.3g}"  # + 0.0: no -0
    return f"{shown} ± {half:.2g} over {len(pairs)} seeds" if len(pairs) > 1 else f"{shown} on one seed"


def _named(outcomes: Mapping[str, Mapping[int, Outcome]], name: str) -> Mapping[int, Outcome]:
    """The runs of a method by seed, empty without any; of its warm start, as if it had ended there."""
    found = outcomes.get(name.removesuffix(BEFORE), {})
    return {seed: replace(o, after=o.before) for seed, o in found.items()} if name.endswith(BEFORE) else found


def table(outcomes: Mapping[str, Mapping[int, Outcome]]) -> list[str]:
    head = ["method", "seeds", *(f"{split}, {mode}" for split in SPLITS for mode in ("greedy", "sampled"))]
    head += ["failed steps", "turns", "tokens", f"iterations to {GOAL:.0%}", "CPU-s"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, by_seed in outcomes.items():
        cells = [name, str(len(by_seed))]
        for split in SPLITS:
            for mode in ("greedy", "sampled"):
                cells.append(_cell(measured(by_seed, split, mode, "tgc"), 1))
        for measure, digits in zip(MEASURES, (3, 2, 0)):
            cells.append(_cell(measured(by_seed, SPLITS[0], "sampled", measure), digits))
        reached = [o.iterations_to_goal for o in by_seed.values()]
        finite = [value for value in reached if math.isfinite(value)]
        cells.append(f"{np.median(finite):.0f} ({len(finite)}/{len(reached)})" if finite else "never")
        cells.append(f"{np.mean([o.cpu_seconds for o in by_seed.values()]):.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def skills_table(outcomes: Mapping[str, Mapping[int, Outcome]]) -> list[str]:
    """Methods that are also measured with skills in the prompt: tasks solved without and with them."""
    lines = ["| method | mode | without skills | with skills |", "|---|---|---|---|"]
    for name, by_seed in outcomes.items():
        for mode in ("greedy", "sampled"):
            shown = measured(by_seed, SPLITS[0], mode_in(mode, "skills"), "tgc")
            if shown:
                plain = measured(by_seed, SPLITS[0], mode, "tgc")
                lines.append(f"| {name} | {mode} | {_cell(plain, 1)} | {_cell(shown, 1)} |")
    return lines if len(lines) > 2 else []


def _cell(values: Mapping[int, float], digits: int) -> str:
    if not values:
        return ""
    mean, half = interval(list(values.values()))
    return f"{mean:.{digits}f}" + (f" ± {half:.{digits}f}" if math.isfinite(half) else "")


def picture(outcomes: Mapping[str, Mapping[int, Outcome]], path: Path) -> None:
    """Success of every seed as a dot, its mean and interval as a bar, on both splits."""
    fig, axes = plt.subplots(1, 2, figsize=(11, 0.42 * len(outcomes) + 1.6), sharey=True)
    for ax, split in zip(axes, SPLITS):
        for row, by_seed in enumerate(outcomes.values()):
            values = list(measured(by_seed, split, "sampled", "tgc").values())
            if not values:
                continue
            mean, half = interval(values)
            ax.plot(values, [row] * len(values), "o", ms=4, alpha=0.5, color="tab:blue")
            ax.errorbar(mean, row, xerr=half if math.isfinite(half) else 0, fmt="|", ms=12, color="black")
        ax.set(title=split.replace("_", "-"), xlabel="tasks solved, sampled (percent)", xlim=(0, 100))
        ax.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(range(len(outcomes)), list(outcomes))
    axes[0].invert_yaxis()
    fig.tight_layout()
    fig.savefig(path, dpi=130)
    plt.close(fig)


def curves(outcomes: Mapping[str, Mapping[int, Outcome]], path: Path) -> None:
    """Mean training success by iteration, a panel a method, every seed behind it."""
    columns = 4
    rows = -(-len(outcomes) // columns)
    fig, axes = plt.subplots(rows, columns, figsize=(12, 2.2 * rows), sharex=True, sharey=True, squeeze=False)
    for ax, (name, by_seed) in zip(axes.flat, outcomes.items()):
        series = [o.success for o in by_seed.values()]
        length = min(map(len, series))
        for one in series:
            ax.plot(one, color="tab:blue", alpha=0.25, lw=0.8)
        ax.plot(np.mean([one[:length] for one in series], axis=0), color="tab:blue", lw=1.8)
        ax.axhline(GOAL, color="black", lw=0.6, ls=":")
        ax.set_title(name, fontsize=9)
        ax.set_ylim(0, 1)
    for ax in axes.flat[len(outcomes) :]:
        ax.axis("off")
    fig.supxlabel("iteration")
    fig.supylabel("success of training rollouts")
    fig.tight_layout()
    fig.savefig(path, dpi=130)
    plt.close(fig)


def write_report(
    out: Path,
    outcomes: Mapping[str, Mapping[int, Outcome]],
    claims: Sequence[Claim],
    *,
    command: str,
) -> None:
    """Everything into `out`, and the table to the console."""
    if not outcomes:
        print("no run has ended yet")
        return
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout
    lines = [f"`{command}`", "", f"commit {commit.strip()}, {platform.machine()}, {os.cpu_count()} cores", ""]
    lines += table(outcomes)
    lines += ["", *skills_table(outcomes)]
    lines += ["", "| claim | | outcome (± one-sided 95 %) |", "|---|---|---|"]
    lines += [f"| {c.name} | {c.says} | {verdict(c, outcomes)} |" for c in claims]
    print("\n".join(lines))
    (out / "table.md").write_text("\n".join(lines) + "\n")
    plain = {name: {seed: asdict(o) for seed, o in by_seed.items()} for name, by_seed in outcomes.items()}
    (out / "results.json").write_text(json.dumps(plain, indent=1) + "\n")
    picture(outcomes, out / "methods.png")
    curves(outcomes, out / "curves.png")
