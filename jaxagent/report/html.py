"""One self-contained HTML page: pictures, evaluation tables, and a viewer that colours tokens.

No script or style is loaded from elsewhere; the page can be mailed. Text of the policy and of environments is
escaped, it may hold anything.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from jaxagent.metrics import Record
from jaxagent.report.result import Result, evaluation_rows, score_text, summary
from jaxagent.report.trajectories import TrajectoryRecord

_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; color:
#222; } h1, h2 { font-weight: 600; } img { max-width: 100%; } table { border-collapse: collapse; } td, th {
padding: .25em .8em; border-bottom: 1px solid #ddd; text-align: right; } td:first-child, th:first-child,
td:nth-child(2), th:nth-child(2) { text-align: left; } details { border: 1px solid #ddd; border-radius: 4px;
margin: .4em 0; padding: .3em .8em; } summary { cursor: pointer; } .good { color: #00734f; } .bad { color:
#b34700; } pre { white-space: pre-wrap; font: 12.5px/1.6 ui-monospace, monospace; background: #fafafa;
padding: .6em; } pre span { border-radius: 2px; } .by-mask span[data-m="1"] { background: #d8e8f8; } .note {
color: #777; } .by-advantage span[data-m="1"] { background: var(--a); }
"""

_SCRIPT = """
document.querySelectorAll('input[name=colour]').forEach(input => input.addEventListener('change', () => {
  document.getElementById('viewer').className = 'by-' + input.value;
}));
"""


def write_page(
    path: Path,
    *,
    title: str,
    pictures: Sequence[Path],
    result: Result | None,
    alarms: Sequence[Record] = (),
    trajectories: Sequence[TrajectoryRecord] = (),
) -> Path:
    """Write the page; parts without data are left out."""
    parts = [f"<h1>{escape(title)}</h1>"]
    if result is not None:
        parts += [f"<p>{escape(summary(result))}</p>", "<h2>Evaluations</h2>", _evaluations(result)]
    if alarms:
        parts += ["<h2>Alarms</h2>", _alarms(alarms)]
    parts += [picture(path) for path in pictures]
    if trajectories:
        parts += ["<h2>Trajectories</h2>", _viewer(trajectories)]
    return write_parts(path, title=title, parts=[*parts, f"<script>{_SCRIPT}</script>"])


def write_parts(path: Path, *, title: str, parts: Sequence[str]) -> Path:
    """A page of ready HTML in the one style."""
    page = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title>"
        f"<style>{_STYLE}</style>"
        f"<body>{''.join(parts)}</body></html>\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, "utf-8", "replace")  # a lone surrogate, and terminals that speak another encoding
    return path


def picture(path: Path) -> str:
    """A picture inside the page."""
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<p><img alt="{escape(path.stem)}" src="data:image/png;base64,{data}"></p>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Texts as an HTML table; they are escaped."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"


def _alarms(alarms: Sequence[Record]) -> str:
    """One row an alarm or rollback: in the order of the run, with the stage's iteration at which it was said."""
    rows = "".join(
        f"<tr><td>{escape(item['stage'])} {item['iteration']:.0f}</td><td>{escape(item['alarm'])}</td>"
        f'<td style="text-align: left">{escape(item["message"])}</td></tr>'
        for item in alarms
    )
    return f"<table><tr><th>iteration</th><th>alarm</th><th>what it says</th></tr>{rows}</table>"


def _evaluations(result: Result) -> str:
    moments, rows = evaluation_rows(result)
    cells = ((split, mode, *(_cell(found, w) for w in moments)) for (split, mode), found in rows.items())
    note = "<p class=note>TGC [95 % interval] / SGC, percent</p>"
    return table(("split", "mode", *moments), cells) + note


def _cell(found: dict[str, Any], when: str) -> str:
    return score_text(found.get(when, {}))


def _viewer(trajectories: Sequence[TrajectoryRecord]) -> str:
    """Trajectories folded by iteration and task; the radio buttons switch what the colour means."""
    choice = (
        "<p>Colour: <label><input type=radio name=colour value=advantage checked> advantage</label> "
        "<label><input type=radio name=colour value=mask> trained tokens</label> "
        "<span class=note>green raises, orange lowers a token's probability; hover for numbers</span></p>"
    )
    items = "".join(_trajectory(record) for record in trajectories)
    return f'{choice}<div id=viewer class="by-advantage">{items}</div>'


def _trajectory(record: TrajectoryRecord) -> str:
    verdict = "<b class=good>solved</b>" if record["success"] else "<b class=bad>not solved</b>"
    head = (
        f"iteration {record['iteration']} of the run, {escape(record['task'])}, rollout {record['rollout']}: "
        f"{verdict}, return {record['reward']:.3g}, {escape(record['status'])}, "
        f"steps {escape(' '.join(record['exec_status']))}"
    )
    failures = "".join(f"<li>{escape(str(text))}</li>" for text in record["failures"])
    largest = max((abs(a) for s in record["segments"] for a in s["advantage"]), default=0.0)
    segments = "".join(f"<pre>{_tokens(segment, largest)}</pre>" for segment in record["segments"])
    return (
        f"<details><summary>{head}</summary>{f'<ul>{failures}</ul>' if failures else ''}{segments}</details>"
    )


def _tokens(segment: dict[str, list[Any]], largest: float) -> str:
    """One span a token. Strength of the colour: the advantage relative to the trajectory's largest."""
    spans = []
    for text, m, k, advantage, logprob in zip(
        segment["text"], segment["mask"], segment["step"], segment["advantage"], segment["logprob"]
    ):
        if not m:
            spans.append(f"<span>{escape(text)}</span>")
            continue
        rgb = "0,158,115" if advantage > 0 else "213,94,0"
        strength = 0.15 + 0.45 * abs(advantage) / largest if advantage else 0.0
        colour = f"rgba({rgb},{strength:.2f})" if advantage else "#eee"
        hint = f"step {k}, advantage {advantage:g}, log-prob {logprob:g}"
        spans.append(f'<span data-m="1" style="--a:{colour}" title="{hint}">{escape(text)}</span>')
    return "".join(spans)
