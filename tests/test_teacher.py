"""Teaching: who gets a teacher's stream, at which tokens, and who goes without."""

import numpy as np
import pytest

from jaxagent.errors import ConfigError
from jaxagent.scoring import TokenScores
from jaxagent.stage import Teacher
from jaxagent.teacher import taught
from jaxagent.types import Credited, Prompt
from tests.made_episodes import make_task, make_trajectory

LESSON = Prompt((), tools=({},))


class Openings:
    """A plain prompt is one token (as in made episodes), a prompt with the lesson three."""

    stop_ids = ()

    def open(self, prompt):
        return [0] if not prompt.tools else [7, 7, 0]

    def reply(self, message):
        return []

    def close(self, ids):
        return []

    def sampled(self, message):
        raise AssertionError("teaching speaks nothing")

    def parse(self, ids):
        raise AssertionError("teaching parses nothing")


class Positions:
    """A scorer whose log-prob of every sampled token is minus its position, its entropy twice that, the best's -3."""

    def __init__(self, row):
        self.row, self.asked = row, []

    def token_scores(self, segments, *, weights="current"):
        self.asked.append((weights, [segment.ids_T.tolist() for segment in segments]))
        places = [np.arange(len(s.ids_T), dtype=np.float32) * s.mask_T for s in segments]
        return [TokenScores(-place_T, 2 * place_T, best_T=0 * place_T - 3) for place_T in places]


def credited(task_id, steps):
    trajectory = make_trajectory(1, task=make_task(task_id), steps=steps)
    return Credited(trajectory, np.ones(len(steps), np.float32))


def test_only_what_has_a_prompt_and_fits_a_row_is_taught():
    short, long, untaught = credited("a", ["ok"]), credited("a", ["ok"] * 4), credited("b", ["ok"])
    teacher = Teacher(lambda t: LESSON if t.task.task_id == "a" else None, "reference")
    scorer = Positions(row=8)
    (first, second, third), metrics = taught([short, long, untaught], teacher, scorer, Openings())
    assert scorer.asked == [("reference", [[7, 7, 0, 0, 0]])]
    # two sampled tokens, at 1 and 2 for the student and at 3 and 4 behind the lesson
    np.testing.assert_array_equal(first.trajectory.segments[0].logprobs["teacher"], [0, -3, -4])
    assert second is long
    assert third is untaught
    assert metrics == {
        "teacher/taught": 1.0,
        "teacher/too_long": 1.0,
        "teacher/cut": 0.0,
        "teacher/entropy": 7.0,  # of 6 and 8
        "teacher/top1": 0.5,  # the token at 3 is the likeliest, the one at 4 is not
    }


def test_a_long_lesson_loses_its_end_and_the_trajectory_nothing():
    """Nine tokens and a lesson of two in a row of ten: one token of the lesson is left."""
    item = credited("a", ["ok"] * 4)
    scorer = Positions(row=10)
    (out,), metrics = taught([item], Teacher(lambda t: LESSON), scorer, Openings())
    assert scorer.asked == [("current", [[7, 0, *[0] * 8]])]
    np.testing.assert_array_equal(out.trajectory.segments[0].logprobs["teacher"], [0, *range(-2, -10, -1)])
    np.testing.assert_array_equal(out.trajectory.segments[0].ids_T, item.trajectory.segments[0].ids_T)
    assert (metrics["teacher/cut"], metrics["teacher/too_long"]) == (1.0, 0.0)
    (out,), metrics = taught([item], Teacher(lambda t: LESSON), Positions(row=9), Openings())
    assert out is item  # nothing of the lesson would be left
    assert (metrics["teacher/cut"], metrics["teacher/too_long"]) == (0.0, 1.0)


def test_a_teacher_of_other_weights_may_have_the_same_prompt():
    item = credited("a", ["ok"])
    (out,), metrics = taught([item], Teacher(lambda t: t.prompt, "ema"), Positions(row=8), Openings())
    np.testing.assert_array_equal(out.trajectory.segments[0].logprobs["teacher"], [0, -1, -2])
    assert metrics["teacher/taught"] == 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decay": 1.0}, "decay=1.0"),
        ({"weights": "checkpoint"}, "a folder goes with"),
        ({"checkpoint": "somewhere"}, "a folder goes with"),
    ],
)
def test_impossible_teachers(settings, message):
    with pytest.raises(ConfigError, match=message):
        Teacher(lambda t: None, **settings)


def test_without_a_teacher_nothing_is_scored():
    scorer = Positions(row=8)
    items = [credited("a", ["ok"])]
    assert taught(items, None, scorer, Openings()) == (items, {})
    assert scorer.asked == []
