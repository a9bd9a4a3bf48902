import io
import json

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console

from jaxagent.errors import DataError
from jaxagent.report.curves import eval_series, learning_curves, running_mean, series
from jaxagent.report.result import final_table, read_result
from jaxagent.report.run import write_report
from jaxagent.report.trajectories import append_trajectories, pick, read_trajectories, trajectory_record
from jaxagent.report.walltime import shown_seconds, wall_chart, wall_seconds, wall_table
from jaxagent.types import Credited
from tests.made_episodes import make_trajectory


def record_of_a_run():
    records = [
        {"step": i, "stage": "sft", "ce/nll": 2.0 / (i + 1), "seconds/update": 1.0, "seconds/total": 1.0}
        for i in range(4)
    ]
    for i in range(4, 30):
        records.append(
            {
                "step": i,
                "stage": "loop",
                "reward/mean": i / 30,
                "rollout/success": i / 30,
                "pg/entropy": 1 / i,
            }
        )
        records[-1] |= {"seconds/collect": 3.0, "seconds/collect/decode": 2.0, "seconds/update": 1.0}
    records.append({"step": 29, "when": "end", "eval/dev/greedy/tgc": 90.0, "eval/dev/greedy/tgc_low": 80.0})
    records[-1] |= {"eval/dev/greedy/tgc_high": 95.0, "seconds/evaluation": 3.0}
    return records


def text(renderable):
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


def inked(path):
    """Share of the picture that is not white, and its size."""
    image = imread(path)[..., :3]
    return float((image < 0.9).any(axis=-1).mean()), image.shape


def test_curves_draw_the_panels_there_is_data_for(tmp_path):
    whole, small = record_of_a_run(), [{"step": 0, "reward/mean": 0.1}, {"step": 1, "reward/mean": 0.2}]
    ink, size = inked(learning_curves(whole, tmp_path / "new" / "whole.png", title="t"))
    small_ink, small_size = inked(learning_curves(small, tmp_path / "small.png"))
    assert ink > 0.01
    assert small_ink > 0.01
    assert size[0] > small_size[0]
    assert size[1] > small_size[1]


def test_nulls_and_missing_values_are_left_out():
    records = [{"step": 0, "a": 1.0}, {"step": 1, "a": None}, {"step": 2}, {"step": 3, "pg/a": 2.0}]
    step, value = series(records, "a")
    assert step.tolist() == [0, 3]
    assert value.tolist() == [1, 2]


def test_evaluations_are_read_with_their_interval():
    rows = eval_series(record_of_a_run())
    assert list(rows) == ["dev, greedy"]
    assert rows["dev, greedy"].tolist() == [[29, 0.9, 0.8, 0.95]]


def test_running_mean():
    assert running_mean(np.array([1.0, 2.0, 3.0, 4.0]), 2).tolist() == [1.0, 1.5, 2.5, 3.5]


def test_an_empty_record_is_an_error(tmp_path):
    with pytest.raises(DataError, match="nothing to draw"):
        learning_curves([], tmp_path / "x.png")
    with pytest.raises(DataError, match="no seconds"):
        wall_chart({}, tmp_path / "x.png")


def test_wall_time_of_the_record():
    assert wall_seconds(record_of_a_run()) == {
        "sft": {"update": 4.0},
        "loop": {"decode": 52.0, "collect": 26.0, "update": 26.0},
        "evaluation": {"evaluation": 3.0},
    }


def test_small_parts_are_shown_together():
    seconds = {
        "a": {"decode": 0.2, "x": 0.3, "update": 90.0},
        "b": {"decode": 109.0, "y": 0.4, "python": 0.1},
    }
    shown = shown_seconds(seconds)
    assert shown == {
        "a": {"decode": 0.2, "update": 90.0, "python": 0.0, "other": 0.3},
        "b": {"decode": 109.0, "update": 0.0, "python": 0.1, "other": 0.4},
    }
    assert list(shown["a"]) == ["decode", "update", "python", "other"]
    assert shown_seconds({"a": {"decode": 1.0}}) == {"a": {"decode": 1.0}}


def test_wall_table_and_chart(tmp_path):
    seconds = wall_seconds(record_of_a_run())
    shown = text(wall_table(seconds))
    assert "52.0" in shown
    assert "111.0" in shown
    assert "47%" in shown
    ink, _ = inked(wall_chart(seconds, tmp_path / "wall.png"))
    assert ink > 0.05


def metrics(tgc, sgc):
    return {"tgc": tgc, "tgc_low": tgc - 5, "tgc_high": tgc + 5, "sgc": sgc, "tasks": 60.0}


def evaluation(when, split, mode, found):
    return {"when": when, "split": split, "mode": mode, "metrics": found}


RESULT = {
    "evaluations": [
        evaluation("sft", "dev", "greedy", metrics(40.0, 20.0)),
        evaluation("loop:5", "dev", "greedy", metrics(60.0, 30.0)),
        evaluation("loop", "dev", "greedy", metrics(92.5, 80.0)),
        evaluation("loop", "test_normal", "sampled", metrics(85.0, 60.0)),
    ],
    "minutes": 4.2,
    "compilations": 63,
    "seed": 3,
    "commit": "abc<",
}


def test_the_final_table():
    shown = text(final_table(RESULT))
    for part in (
        "40.0 [35–45] / 20.0",
        "92.5 [88–98] / 80.0",
        "+52.5",
        "test_normal",
        "4.2 minutes",
        "compilations: 63",
    ):
        assert part in shown, part
    assert "60.0 [55–65]" not in shown


def test_result_file(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(RESULT))
    assert read_result(path) == RESULT
    for content in ("{", '{"before": {}}'):
        path.write_text(content)
        with pytest.raises(DataError, match=r"result\.json"):
            read_result(path)


def a_trajectory(rollout=0, advantage=(0.5, -0.25)):
    trajectory = make_trajectory(1.0, steps=["ok", "runtime_error"], rollout=rollout)
    return Credited(trajectory, np.array(advantage, np.float32))


def test_trajectories_keep_mask_step_and_advantage_token_by_token(tmp_path):
    record = trajectory_record(a_trajectory(), lambda ids: f"<{ids[0]}>", iteration=7)
    (segment,) = record["segments"]
    assert segment["mask"] == [0, 1, 1, 1, 1]
    assert segment["step"] == [-1, 0, 0, 1, 1]
    assert segment["advantage"] == [0.0, 0.5, 0.5, -0.25, -0.25]
    path = tmp_path / "trajectories.jsonl"
    append_trajectories(path, [record])
    append_trajectories(path, [record | {"reward": 2.0}])
    with path.open("a") as file:
        file.write('{"iteration": 8, "ta')
    assert read_trajectories(path) == [record | {"reward": 2.0}]
    assert read_trajectories(tmp_path / "none") == []


def test_both_ends_of_the_advantages_are_picked_first():
    items = [a_trajectory(i, (a, a)) for i, a in enumerate((0.1, -0.9, 0.8, 0.0))]
    assert [item.trajectory.rollout for item in pick(items, 3)] == [2, 1, 0]
    assert len(pick(items, 9)) == 4
    assert pick([], 2) == []


def test_the_page_lists_alarms_with_their_words(tmp_path):
    lines = [json.dumps(record) + "\n" for record in record_of_a_run()]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    alarm = {
        "step": 9,
        "stage": "loop",
        "iteration": 6,
        "alarm": "kl",
        "message": "KL > 0.1, since iteration 6",
    }
    (tmp_path / "alarms.jsonl").write_text(json.dumps(alarm) + "\n")
    page = write_report(tmp_path, Console(file=io.StringIO())).read_text()
    assert "<td>loop 6</td><td>kl</td>" in page
    assert "KL &gt; 0.1, since iteration 6" in page


def test_the_report_of_a_run_folder(tmp_path):
    folder = tmp_path / "run <1>"
    folder.mkdir()
    lines = [json.dumps(record) + "\n" for record in record_of_a_run()]
    (folder / "metrics.jsonl").write_text("".join(lines))
    unfinished = write_report(folder, Console(file=io.StringIO()))
    assert "Evaluations" not in unfinished.read_text()
    spent = {"start": {"imports": 77.5}, "loop": {"decode": 2.0}}
    (folder / "result.json").write_text(json.dumps(RESULT | {"seconds": spent}))
    token = trajectory_record(a_trajectory(), lambda ids: "<script>alert(1)</script>", iteration=0)
    append_trajectories(folder / "trajectories.jsonl", [token])
    out = io.StringIO()
    page = write_report(folder, Console(file=out, width=140)).read_text()
    assert "<script>alert" not in page
    assert page.count("<script>") == 1
    assert "run <1>" not in page
    assert page.count("data:image/png;base64,") == 2
    assert "92.5 [88–98] / 80.0" in page
    assert page.count('data-m="1" style') == 4
    assert "step 1, advantage -0.25" in page
    assert "http" not in page
    assert "+52.5" in out.getvalue()
    assert "77.5" in out.getvalue(), "what result.json holds goes before the record"


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(DataError, match=r"no metrics\.jsonl"):
        write_report(tmp_path)
