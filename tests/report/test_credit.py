"""The page and the numbers of `jaxagent credit`."""

import io
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console

from jaxagent.data.rollout_store import FILE, Origin, RolloutStore, RolloutWriter
from jaxagent.errors import DataError
from jaxagent.report.credit import _spans, report_credit, show_credit, write_credit_page
from jaxagent.report.credit_groups import action_text, colour
from jaxagent.report.credit_summary import (
    correlations,
    credit_chart,
    disagreement,
    shown_groups,
    signs,
    situations,
    summary_rows,
)
from jaxagent.rescore import read_methods, read_reward, rescore
from jaxagent.types import Action, ToolCall
from tests.made_episodes import make_step, make_task, make_trajectory
from tests.recipes.test_stages import group


def scored(*passed, methods="loop,gvpo"):
    """The host's numbers of groups of four rollouts with three steps, the second of which failed."""
    groups = [group(p, f"t{i}") for i, p in enumerate(passed)]
    return rescore(groups, read_methods(methods), read_reward("test_fraction"))


def test_shares_of_signs():
    assert signs(np.array([1.0, -2.0, 0.0, 3.0, np.nan])) == (0.5, 0.25, 0.25)
    assert signs(np.array([np.nan])) == (0, 0, 0)


def test_steps_by_the_outcome_of_their_episode_and_their_execution():
    counts = [int(mask.sum()) for mask in situations(scored([4, 2, 0, 2]))]
    assert counts == [2, 1, 6, 3]


def test_summary_of_a_method():
    """gvpo: A = [.5, 0, .5], [0, -.2, 0], [-.5, -.6, -.5], [0, -.2, 0]."""
    _, row = summary_rows(scored([4, 2, 0, 2]))
    shares, sizes, means = row[1:4], row[4:6], row[6:]
    assert shares == ["17 %", "42 %", "42 %"]
    assert sizes == ["0.25", "0.60"]
    assert means == ["+0.50", "0", "-0.17", "-0.33"]


def test_correlation_over_the_steps_that_both_credit():
    a, b = [1.0, 2.0, 3.0, np.nan], [2.0, 4.0, 6.0, -9.0]
    constant, opposite = [1.0, 1.0, 1.0, 1.0], [-1.0, -2.0, -3.0, 0.0]
    r = correlations(np.array([a, b, constant, opposite]).T)
    assert r[0, 1] == pytest.approx(1)
    assert r[0, 3] == pytest.approx(-1)
    assert np.isnan(r[0, 2])


def test_the_group_on_which_methods_differ_comes_first():
    """Without variance LOOP credits nothing and GVPO lowers the failed steps; one method alone has no dispute."""
    found = scored([4, 4, 4, 4], [2, 2, 2, 2], [4, 0, 4, 0])
    apart = disagreement(found)
    assert apart[0] == apart[1] > 0
    assert shown_groups(found, 2) == sorted(range(3), key=lambda g: -apart[g])[:2]
    assert disagreement(scored([4, 0], methods="loop")) == [0]


def test_colours_are_green_orange_white_and_grey():
    assert colour(0.5, 0.5) == "rgba(0,158,115,0.75)"
    assert colour(-0.25, 0.5).startswith("rgba(213,94,0,0.4")
    assert colour(0.0, 0.5) == "#fff"
    assert colour(np.nan, 0.5) == "#eee"


def test_what_was_asked_of_the_environment():
    calls = (ToolCall("send", {"to": "a", "n": 1}), ToolCall("stop", {}))
    assert action_text(Action("", calls)) == "send(to='a', n=1)\nstop()"
    assert action_text(Action(error="no code")) == "[no action: no code]"
    assert action_text(Action("print(1)")) == "print(1)"


def test_the_picture_shows_the_methods_apart(tmp_path):
    image = imread(credit_chart(scored([4, 2, 0, 2]), tmp_path / "new" / "a.png"))[..., :3]
    for r, g, b in ((0, 158, 115), (213, 94, 0)):
        near = np.abs(image - np.array([r, g, b]) / 255).max(axis=-1) < 0.02
        assert near.mean() > 0.005


def hostile():
    """Texts that would end the page's own markup."""
    step = replace(make_step(0, code="<script>alert(1)</script>"), observation_after="</pre><b>x")
    task = make_task("<i>task</i>")
    pair = [
        make_trajectory(r, task=task, rollout=i, steps=[step], tests=(0, 4)) for i, r in enumerate((1, 0))
    ]
    return replace(group([4, 0]), task=task, trajectories=tuple(pair))


def test_the_page_holds_every_step_and_escapes_what_it_was_told(tmp_path):
    found = rescore([hostile(), group([4, 2, 0, 2], "t1")], read_methods("loop,gvpo"), None)
    found = replace(found, failed={"gae": "needs <value>"}, finer=("gvpo",))
    page = write_credit_page(found, tmp_path / "page.html", title="T", about="about <b>").read_text()
    for part in ("<script", "<i>task", "</pre><b>x", "<value>", "about <b>", "http"):
        assert part not in page, part
    assert page.count("<tr><td>") == 2 + 12 + 2  # steps, and the two methods of the summary
    assert page.count("<td class=a") == 2 * 14
    assert page.count("data:image/png;base64,") == 1
    assert page.count("<svg") == 2
    assert "<b>gae</b> is not shown: needs &lt;value&gt;" in page
    assert "credits single tokens" in page
    assert "runtime error" in page


def test_a_method_that_could_not_be_computed_says_why(tmp_path):
    found = replace(scored([4, 0], methods="loop"), failed={"gae": "why"})
    assert (
        "is not shown: why" in write_credit_page(found, tmp_path / "p.html", title="T", about="").read_text()
    )
    out = io.StringIO()
    show_credit(found, Console(file=out))
    assert out.getvalue().endswith("gae: why\n")


def test_the_console_table_fits_80_columns():
    out = io.StringIO()
    show_credit(scored([4, 2, 0, 2]), Console(file=out, width=80))
    (line,) = [line for line in out.getvalue().splitlines() if line.strip().startswith("gvpo")]
    assert line.split() == ["gvpo", "17", "%", "42", "%", "0.25", "+0.50", "0", "-0.17", "-0.33", "+0.91"]


def test_the_last_iteration_is_shown_unless_another_is_named(tmp_path, capsys):
    writer = RolloutWriter(tmp_path / FILE, Origin("a", "plain", "tiny", 1.0))
    for iteration in (0, 1, 4):
        writer.write([group([4, 0], f"task{iteration}")], iteration=iteration, stage="rl")
    writer.close()
    store, methods, page = RolloutStore(tmp_path), read_methods("loop"), tmp_path / "p.html"
    assert "task4" in report_credit(store, methods, None, page).read_text()
    assert "task1" in report_credit(store, methods, None, page, iteration=1, task="task1").read_text()
    assert "Iteration 1 (stage rl)" in capsys.readouterr().out
    with pytest.raises(DataError, match="stored: 0-1, 4"):
        report_credit(store, methods, None, page, iteration=2)


def test_rollouts_from_which_nothing_that_was_asked_for_follows_are_an_error(tmp_path):
    writer = RolloutWriter(tmp_path / FILE, Origin("a", "plain", "tiny", 1.0))
    writer.write([group([4, 0])], iteration=0, stage="rl")
    writer.close()
    with pytest.raises(
        DataError, match=r"no method .* can be computed from it: ppo: .*no token stream 'value'"
    ):
        report_credit(RolloutStore(tmp_path), read_methods("ppo"), None, tmp_path / "p.html")
    assert not (tmp_path / "p.html").exists()


def test_spans():
    assert _spans([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"


def test_an_empty_store_is_an_error(tmp_path):
    RolloutWriter(tmp_path / FILE, Origin("a", "plain", "tiny", 1.0)).close()
    with pytest.raises(DataError, match="holds no rollouts yet"):
        report_credit(RolloutStore(tmp_path), read_methods("loop"), None, tmp_path / "p.html")
