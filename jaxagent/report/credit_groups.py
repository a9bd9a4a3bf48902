"""A group of stored rollouts as HTML: a strip at a glance, and a matrix of its steps and the methods.

Text of the policy and of environments is escaped, it may hold anything.
"""

from __future__ import annotations

from html import escape

import numpy as np

from jaxagent.report.credit_summary import TINY, scales, signed
from jaxagent.rescore import Rescored, StepRow
from jaxagent.types import Action, Group, Trajectory

TEXT_CHARS, LINE_CHARS = 3000, 88  # of an unfolded text; of the line of a step
CELL, GAP = 9, 5  # pixels of the strip


def group_matrix(scored: Rescored, number: int, apart: float, *, opened: bool) -> str:
    group = scored.groups[number]
    index = [x for x, row in enumerate(scored.rows) if row.group == number]
    returns = [trajectory.reward for trajectory in group.trajectories]
    solved = sum(trajectory.success for trajectory in group.trajectories)
    head = (
        f"<b>{escape(group.task.task_id)}</b>: {solved} of {len(returns)} solved, returns "
        f"{_range(returns)}, dispute {apart:.2f}{_dropped(group)}"
    )
    rows, largest_M = [], scales(scored.advantage_XM)
    for trajectory in group.trajectories:
        rows.append(_episode(trajectory, 3 + len(scored.methods)))
        mine = [x for x in index if scored.rows[x].trajectory is trajectory]
        rows += [_step(scored.rows[x], scored.advantage_XM[x], largest_M) for x in mine]
    names = "".join(f"<th class=a>{escape(name)}</th>" for name in scored.methods)
    body = f"<table><tr><th>step<th>ran<th>message{names}</tr>{''.join(rows)}</table>"
    strip = _strip(scored, index, largest_M)
    return f"<details{' open' if opened else ''}><summary>{head}{strip}</summary>{body}</details>"


def _episode(trajectory: Trajectory, columns: int) -> str:
    verdict = "<span class=good>solved</span>" if trajectory.success else "<span class=bad>not solved</span>"
    text = (
        f"rollout {trajectory.rollout}: {verdict}, return {trajectory.reward:.3g}, "
        f"{escape(trajectory.status.value.replace('_', ' '))}, {len(trajectory.steps)} steps"
    )
    failures = trajectory.evaluation.failures if trajectory.evaluation else ()
    missed = (
        f"<span class=note> — not passed: {escape(_cut('; '.join(failures), 160))}</span>" if failures else ""
    )
    return f"<tr class=episode><td colspan={columns}>{text}{missed}</td></tr>"


def _step(row: StepRow, advantage_M: np.ndarray, largest_M: np.ndarray) -> str:
    step = row.step
    status = escape(step.exec_status.value.replace("_", " "))
    ran = f"<span class=fail>{status}</span>" if step.exec_status.failed else status
    said = action_text(step.action) or step.text
    texts = [("message", _whole(row)), ("answer", step.observation_after)]
    if step.k == 0:  # later ones are the answer above
        texts = [("before", step.observation_before), *texts]
    body = "".join(
        f"<p class=note>{name}</p><pre>{escape(_cut(text, TEXT_CHARS))}</pre>" for name, text in texts if text
    )
    said = " ⏎ ".join(said.split("\n"))
    line = escape(said if len(said) <= LINE_CHARS else f"{said[:LINE_CHARS]}…") or "<i>nothing</i>"
    message = f"<details><summary><code>{line}</code></summary>{body}</details>"
    cells = "".join(_cell(float(a), float(most)) for a, most in zip(advantage_M, largest_M))
    return f"<tr><td>{step.k}<td>{ran}<td class=text>{message}</td>{cells}</tr>"


def _whole(row: StepRow) -> str:
    thinking = f"{row.step.thinking}\n\n" if row.step.thinking else ""
    return thinking + (row.step.text or action_text(row.step.action))


def action_text(action: Action) -> str:
    """What the environment was asked to do, or why it could not be asked."""
    calls = [
        f"{call.name}({', '.join(f'{k}={v!r}' for k, v in call.arguments.items())})"
        for call in action.tool_calls
    ]
    return action.text or "\n".join(calls) or (f"[no action: {action.error}]" if action.error else "")


def _cell(advantage: float, largest: float) -> str:
    return f'<td class=a style="background:{colour(advantage, largest)}">{signed(advantage)}</td>'


def colour(advantage: float, largest: float) -> str:
    """Green raises, orange lowers; white is 0, grey is no credit at all."""
    if not np.isfinite(advantage):
        return "#eee"
    if abs(advantage) <= TINY:
        return "#fff"
    rgb = "0,158,115" if advantage > 0 else "213,94,0"
    return f"rgba({rgb},{0.1 + 0.65 * min(abs(advantage) / largest, 1):.2f})"


def _strip(scored: Rescored, index: list[int], largest_M: np.ndarray) -> str:
    """The group at a glance: a column a step, a row a method, a bar over the solved episodes."""
    parts, x, before = [], 0, None
    for place in index:
        trajectory = scored.rows[place].trajectory
        x += GAP if before is not None and trajectory is not before else 0
        before = trajectory
        if trajectory.success:
            parts.append(f'<rect x="{x}" y="0" width="{CELL}" height="3" fill="#333"/>')
        for m, advantage in enumerate(scored.advantage_XM[place]):
            fill = colour(float(advantage), float(largest_M[m]))
            parts.append(
                f'<rect x="{x}" y="{5 + m * CELL}" width="{CELL - 1}" height="{CELL - 1}" fill="{fill}" stroke="#ddd" '
                'stroke-width=".5"/>'
            )
        x += CELL
    height = 6 + CELL * len(scored.methods)
    return f'<svg class=strip width="{x}" height="{height}" viewBox="0 0 {x} {height}">{"".join(parts)}</svg>'


def _range(returns: list[float]) -> str:
    if not returns:
        return "–"
    low, high = min(returns), max(returns)
    return f"all {low:.3g}" if high - low < TINY else f"{low:.3g} to {high:.3g}"


def _dropped(group: Group) -> str:
    return f", {len(group.dropped)} dropped" if group.dropped else ""


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]} … {len(text) - length} more characters"
