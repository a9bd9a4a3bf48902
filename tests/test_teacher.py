"""Teaching: who gets a teacher's stream, at which tokens, and who goes without."""

import numpy as np

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

    def parse(self, ids):
        raise AssertionError("teaching parses nothing")


class Positions:
    """A scorer whose log-prob of every sampled token is minus its position."""

    def __init__(self, row):
        self.row, self.asked = row, []

    def score_segments(self, segments, *, weights="current"):
        self.asked.append((weights, [len(segment.ids_T) for segment in segments]))
        return [-np.arange(len(s.ids_T), dtype=np.float32) * s.mask_T for s in segments]


def credited(task_id, steps):
    trajectory = make_trajectory(1, task=make_task(task_id), steps=steps)
    return Credited(trajectory, np.ones(len(steps), np.float32))


def test_only_what_has_a_prompt_and_fits_a_row_is_taught():
    short, long, untaught = credited("a", ["ok"]), credited("a", ["ok"] * 4), credited("b", ["ok"])
    teacher = Teacher(lambda t: LESSON if t.task.task_id == "a" else None, "reference")
    scorer = Positions(row=8)
    (first, second, third), metrics = taught([short, long, untaught], teacher, scorer, Openings())
    assert scorer.asked == [("reference", [5])]
    # two sampled tokens, at 1 and 2 for the student and at 3 and 4 behind the lesson
    np.testing.assert_array_equal(first.trajectory.segments[0].logprobs["teacher"], [0, -3, -4])
    assert second is long
    assert third is untaught
    assert metrics == {"teacher/taught": 1.0, "teacher/too_long": 1.0}


def test_without_a_teacher_nothing_is_scored():
    scorer = Positions(row=8)
    items = [credited("a", ["ok"])]
    assert taught(items, None, scorer, Openings()) == (items, {})
    assert scorer.asked == []
