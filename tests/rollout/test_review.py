"""The same action tokens under another prompt, aligned by suffix."""

import asyncio

import numpy as np
import pytest

from jaxagent.envs.inline_pool import InlinePool
from jaxagent.errors import RolloutError
from jaxagent.plan import Plan
from jaxagent.rollout.review import carry_back, plain_prompt, privileged, review
from jaxagent.types import Message, Prompt, Trajectory
from tests.envs.fake_envs import echo_spec, echo_task
from tests.rollout.fake_policy import CharRenderer, Scripted, char_runner


def episode(**how) -> Trajectory:
    """how: fields of its plan."""
    policy = Scripted(lambda key: ["ab", "end"][key.step])
    runner = char_runner(echo_spec(), policy, InlinePool(), max_tokens=9, context=200)
    return asyncio.run(runner(Plan(echo_task(), 1, **how), 0))


@pytest.mark.parametrize("opening", ["a much longer opening with a skill", "x", ""])
def test_action_tokens_are_the_same_and_align_by_suffix(opening):
    trajectory = episode()
    (original,) = trajectory.segments
    (other,) = review(trajectory, Prompt((Message("user", opening),)), CharRenderer())
    n = len(original.ids_T) - 6  # "hello" and the generation prompt
    assert len(other.ids_T) == n + len(opening) + 1
    assert "".join(map(chr, other.ids_T[: len(opening)])) == opening
    for mine, theirs in (
        (original.ids_T, other.ids_T),
        (original.mask_T, other.mask_T),
        (original.step_T, other.step_T),
        (original.logprobs["behaviour"], other.logprobs["behaviour"]),
    ):
        np.testing.assert_array_equal(mine[-n:], theirs[-n:])
        assert mine.dtype == theirs.dtype
    assert not other.mask_T[:-n].any()
    assert (other.step_T[:-n] == -1).all()


def test_the_same_prompt_changes_nothing():
    trajectory = episode()
    (other,) = review(trajectory, trajectory.prompt, CharRenderer())
    np.testing.assert_array_equal(other.ids_T, trajectory.segments[0].ids_T)
    np.testing.assert_array_equal(other.mask_T, trajectory.segments[0].mask_T)


def test_values_are_carried_back_to_their_own_tokens():
    """A teacher's value for token id i is -i: after the way back it must sit on a token with that id."""
    trajectory = episode()
    (original,) = trajectory.segments
    for opening in ("a long opening prompt", ""):
        (other,) = review(trajectory, Prompt((Message("user", opening),)), CharRenderer())
        values = -other.ids_T.astype(np.float32)
        np.testing.assert_array_equal(carry_back(values, original), -original.ids_T * original.mask_T)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([1, 2, 8, 9], [1, 2, 5, 6, 8, 9], (2, 4)),
        ([8], [5, 5, 8], (0, 2)),
        ([1, 8], [1, 8], (2, 2)),
        ([1, 8], [2, 3], (0, 2)),
        ([4, 4], [4, 4, 4], (2, 3)),  # start and end may not share a token
        ([1, 2, 8], [1, 8], (1, 1)),
        ([], [5, 6], (0, 2)),
    ],
)
def test_what_is_privileged(old, new, expected):
    assert privileged(np.array(old, np.int32), np.array(new, np.int32)) == expected


def test_a_lesson_is_cut_to_the_room_and_the_rest_is_not():
    """The opening "hello" becomes "hel<lesson>lo": only tokens of the lesson go, from its end."""
    trajectory = episode()
    (original,) = trajectory.segments
    n = len(original.ids_T)
    lesson = Prompt((Message("user", "hel[LESSON]lo"),))
    for kept in (8, 7, 3, 1):
        (other,) = review(trajectory, lesson, CharRenderer(), room=n + kept)
        assert "".join(map(chr, other.ids_T[: kept + 5])) == "hel" + "[LESSON]"[:kept] + "lo"
        np.testing.assert_array_equal(other.ids_T[kept:][5:], original.ids_T[5:])
        np.testing.assert_array_equal(other.mask_T[kept:], original.mask_T)
    assert review(trajectory, lesson, CharRenderer(), room=n) == []
    assert len(review(trajectory, lesson, CharRenderer(), room=n + 100)[0].ids_T) == n + 8


def test_the_plain_prompt_of_an_episode_is_kept():
    assert plain_prompt(episode()) == episode().prompt
    shown = episode(prompt=lambda opening: Prompt((Message("system", "lesson"), *opening.messages)))
    assert shown.prompt.messages[0].content == "lesson"
    assert plain_prompt(shown) == episode().prompt
    (back,) = review(shown, plain_prompt(shown), CharRenderer())
    np.testing.assert_array_equal(back.ids_T, episode().segments[0].ids_T)
    np.testing.assert_array_equal(back.logprobs["behaviour"], episode().segments[0].logprobs["behaviour"])


def test_a_rewritten_segment_is_refused():
    trajectory = episode()
    moved = Trajectory(
        "x",
        trajectory.task,
        0,
        trajectory.status,
        Prompt((Message("user", "other"),)),
        (),
        trajectory.segments,
    )
    with pytest.raises(RolloutError, match="does not start with"):
        review(moved, trajectory.prompt, CharRenderer())
