"""The same action tokens under another prompt, aligned by suffix."""

import asyncio

import numpy as np
import pytest

from jaxagent.envs.inline_pool import InlinePool
from jaxagent.errors import RolloutError
from jaxagent.rollout.episode import EpisodeLimits, run_episode
from jaxagent.rollout.review import carry_back, review
from jaxagent.types import Message, Prompt, Sampling, Trajectory
from tests.envs.fake_envs import echo_spec, echo_task
from tests.rollout.fake_policy import CharRenderer, Scripted


def episode() -> Trajectory:
    return asyncio.run(
        run_episode(
            echo_spec(),
            echo_task(),
            rollout=0,
            generate=Scripted(lambda key: ["ab", "end"][key.step]),
            pool=InlinePool(),
            renderer=CharRenderer(),
            sampling=Sampling(max_tokens=9),
            limits=EpisodeLimits(context=200),
            key_seed=0,
        )
    )


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
