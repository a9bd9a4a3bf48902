"""The report of an evaluation folder: tables on the console, scores.png, and one HTML page with some episodes.

In: a folder of `jaxagent eval` with its result.json. The page holds everything and can be mailed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from jaxagent.eval.intervals import interval
from jaxagent.eval.ledger import read_episodes
from jaxagent.eval.metrics import kinds, read_record, task_scores
from jaxagent.eval.settings import read_json
from jaxagent.report.html import picture, table, write_parts

Evaluation = Mapping[str, Any]
SHOWN, SHOWN_CHARS = 12, 6000  # episodes of each round on the page, characters of each of their texts
MAIN = ("tgc", "sgc", "completion", "task_score")
OWN = 12  # metrics of the environment on the console; the page holds all
PERCENT = ("tgc", "sgc")
SAMPLES = re.compile(r"^(pass|avg|best|task_score_best)_(at|hat)_\d+$")


def write_evaluation_report(folder: Path, console: Console | None = None) -> Path:
    """Draw and print what the folder holds; returns the HTML page."""
    console = console or Console()
    result = read_json(folder / "result.json")
    evaluations = result["evaluations"]
    chart = score_chart(evaluations, folder / "report" / "scores.png", title=title(result))
    console.print(score_table(result))
    for evaluation in evaluations:
        if len(rows := kind_rows(evaluation)) > 1:
            console.print(_rich(f"{_named(evaluation)}: by kind of task", KIND_HEAD, rows))
    parts = [f"<h1>{escape(title(result))}</h1>", f"<p>{escape(scope(result))}</p>"]
    parts += [table(*score_rows(result)), picture(chart)]
    for evaluation in evaluations:
        parts += [f"<h2>{escape(_named(evaluation))}</h2>", table(KIND_HEAD, kind_rows(evaluation))]
        parts += [table(("measure", "value"), all_rows(evaluation)), _episodes(folder, evaluation)]
    page = write_parts(folder / "report" / "index.html", title=title(result), parts=parts)
    console.print(f"report: {page}", soft_wrap=True)
    return page


def title(result: Mapping[str, Any]) -> str:
    return f"{result['policy']} on {result['settings']['env']['name']}"


def scope(result: Mapping[str, Any]) -> str:
    """What was played, and what is missing of it."""
    parts = []
    for evaluation in result["evaluations"]:
        n, of = len(evaluation["records"]), evaluation["of"]
        some = f"the first {n} of {of} tasks" if n < of else f"all {of} tasks"
        lost = sum(evaluation["dropped"].values())
        dropped = f", {lost} episodes dropped: {evaluation['dropped']}" if lost else ""
        parts.append(f"{_named(evaluation)}: {some}, rollouts of each: {evaluation['n']}{dropped}")
    state = "" if result["complete"] else "INCOMPLETE: scores are over finished episodes. "
    return f"{state}{'; '.join(parts)}. Commit {result['commit']}."


def score_rows(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """(head, one row for each measure): a column for each split and mode. Measures that none has are left out."""
    evaluations = result["evaluations"]
    head = ["measure", *map(_named, evaluations)]
    rows = [["tasks (missing)", *(_counts(evaluation) for evaluation in evaluations)]]
    rows += [[name, *(_scored(e["metrics"], name) for e in evaluations)] for name in MAIN]
    own = list(dict.fromkeys(name for e in evaluations for name in e["own"]))[:OWN]
    rows += [[name, *(_number(e["metrics"].get(name)) for e in evaluations)] for name in own]
    samples = sorted({m for e in evaluations for m in e["metrics"] if SAMPLES.search(m)}, key=_by_k)
    rest = [
        "tgc_std",
        *samples,
        "turns",
        "at_limit",
        "exec_fail",
        "give_up",
        "action_tokens",
        "total_tokens",
        "flops",
    ]
    rows += [[name, *(_number(e["metrics"].get(name)) for e in evaluations)] for name in rest]
    cost = ("chip_s_per_solved", "env_s_per_solved")
    rows += [[name, *(_number(e["cost"].get(name)) for e in evaluations)] for name in cost]
    return head, [row for row in rows if any(row[1:])]


def score_table(result: Mapping[str, Any]) -> Table:
    made = _rich(title(result), *score_rows(result))
    made.caption = scope(result)
    return made


KIND_HEAD = ("kind", "tasks", "TGC [95 % interval]", "completion")


def kind_rows(evaluation: Evaluation) -> list[list[str]]:
    """One row a difficulty and type, over tasks with a finished rollout."""
    return [
        [name, str(n), f"{100 * mean:.1f} [{100 * low:.0f}–{100 * high:.0f}]", f"{completion:.3f}"]
        for name, n, mean, low, high, completion in _kinds(evaluation)
    ]


def all_rows(evaluation: Evaluation) -> list[list[str]]:
    """Every metric and every second."""
    values = {**evaluation["metrics"], **evaluation["cost"]}
    return [[name, _number(values[name])] for name in sorted(values)]


def score_chart(evaluations: Sequence[Evaluation], path: Path, *, title: str) -> Path:
    """TGC with its interval: overall, by kind of task if there are several, and pass@k over several samples."""
    overall = [(_named(e), *_interval_of(e["metrics"])) for e in evaluations if "tgc" in e["metrics"]]
    found = _kinds(evaluations[0])
    by_kind = [(name, 100 * mean, 100 * low, 100 * high) for name, _, mean, low, high, _ in found]
    sampled = [e for e in evaluations if "pass_at_2" in e["metrics"]]
    panels = 1 + (len(by_kind) > 1) + bool(sampled)
    height = max(3.2, 1 + 0.24 * max(len(overall), len(by_kind)))
    figure = Figure(figsize=(5.2 * panels, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = iter(np.atleast_1d(figure.subplots(1, panels)))
    _bars(next(axes), overall, "Tasks solved")
    if len(by_kind) > 1:
        _bars(next(axes), by_kind, f"By kind of task ({_named(evaluations[0])})")
    if sampled:
        _curves(next(axes), sampled)
    figure.suptitle(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path


def _bars(axis: Axes, rows: Sequence[tuple[str, float, float, float]], name: str) -> None:
    """Horizontal bars, the first on top; whiskers are 95 % intervals over tasks."""
    for place, (_, value, low, high) in enumerate(rows):
        whiskers = [[max(value - low, 0)], [max(high - value, 0)]]
        axis.barh(place, value, xerr=whiskers, color="#0072b2", ecolor="#333333", height=0.6, capsize=2)
    axis.set_yticks(range(len(rows)), [row[0] for row in rows], fontsize=8)
    axis.set_ylim(max(len(rows), 5) - 0.4, -0.6)  # few bars stay thin
    axis.set_xlim(0, 100)
    axis.set_xlabel("percent", fontsize=8)
    axis.set_title(name, fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)


def _curves(axis: Axes, evaluations: Sequence[Evaluation]) -> None:
    """pass@k rises with k, pass^k falls."""
    ticks: set[int] = set()
    for evaluation in evaluations:
        for prefix, label in (("pass_at_", "pass@k"), ("pass_hat_", "pass^k")):
            names = sorted((m for m in evaluation["metrics"] if m.startswith(prefix)), key=_by_k)
            k, value = [_by_k(m)[0] for m in names], [evaluation["metrics"][m] for m in names]
            axis.plot(k, value, marker="o", ms=4, lw=1.4, label=f"{label}, {evaluation['split']}")
            ticks |= set(k)
    axis.set_xscale("log", base=2)
    axis.set_xticks(sorted(ticks), [str(tick) for tick in sorted(ticks)])
    axis.set_ylim(-0.03, 1.03)
    axis.set_xlabel("k", fontsize=8)
    axis.set_title("Several samples a task", fontsize=10)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=7, frameon=False)


def _kinds(evaluation: Evaluation) -> list[tuple[str, int, float, float, float, float]]:
    """(kind, tasks, mean, low, high, completion)."""
    records = [read_record(fields) for fields in evaluation["records"] if fields["success"]]
    rows = []
    for name, members in kinds(records).items():
        score_P = task_scores(members)
        completion = float(np.mean([np.mean(record.completion) for record in members]))
        rows.append((name, len(members), float(score_P.mean()), *interval(score_P), completion))
    return rows


def _episodes(folder: Path, evaluation: Evaluation) -> str:
    """Some episodes, folded: unsolved ones first, for they say more."""
    path = folder / "episodes" / f"{evaluation['episodes']}.jsonl"
    records = sorted(read_episodes(path).values(), key=lambda record: record["evaluation"]["success"])
    half = SHOWN // 2
    shown = records if len(records) <= SHOWN else [*records[:half], *records[-half:]]
    return "".join(_episode(record) for record in shown)


def _episode(record: Mapping[str, Any]) -> str:
    verdict = record["evaluation"]
    solved = "<b class=good>solved</b>" if verdict["success"] else "<b class=bad>not solved</b>"
    said = [(message["role"], message["content"]) for message in record["prompt"]]
    for step in record["steps"]:
        said += [("assistant", step["text"]), (f"environment ({step['exec_status']})", step["after"])]
    failures = [("not passed", text) for text in verdict["failures"]]
    body = "".join(
        f"<p class=note>{escape(who)}</p><pre>{escape(_cut(text))}</pre>" for who, text in said + failures
    )
    head = f"{escape(record['task'])}, rollout {record['rollout']}: {solved}, {escape(record['status'])}"
    return f"<details><summary>{head}, {verdict['passed']}/{verdict['total']}</summary>{body}</details>"


def _cut(text: str) -> str:
    return (
        text
        if len(text) <= SHOWN_CHARS
        else f"{text[:SHOWN_CHARS]}\n[… {len(text) - SHOWN_CHARS} more characters]"
    )


def _named(evaluation: Evaluation) -> str:
    return f"{evaluation['split']} {evaluation['mode']}"


def _counts(evaluation: Evaluation) -> str:
    missing = int(evaluation["metrics"]["missing"])
    return f"{len(evaluation['records'])}" + (f" ({missing})" if missing else "")


def _interval_of(metrics: Mapping[str, float], name: str = "tgc") -> tuple[float, float, float]:
    value = metrics[name]
    return value, metrics.get(f"{name}_low", value), metrics.get(f"{name}_high", value)


def _scored(metrics: Mapping[str, float], name: str) -> str:
    """ "92.5 [88.1–97.0]"; empty if the metric is not there."""
    if name not in metrics:
        return ""
    digits = 1 if name in PERCENT else 3
    value, low, high = _interval_of(metrics, name)
    return f"{value:.{digits}f} [{low:.{digits}f}–{high:.{digits}f}]"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _by_k(metric: str) -> tuple[int, str]:
    """pass_at_4 -> (4, "pass_at_4"); metrics of k samples are sorted by k."""
    number = metric.rpartition("_")[2]
    return (int(number) if number.isdigit() else 0), metric


def _rich(name: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    made = Table(title=name)
    for number, column in enumerate(head):
        made.add_column(column, justify="right" if number else "left")
    for row in rows:
        made.add_row(*row)
    return made
