"""Token histories: what was sampled is trained exactly once."""

import numpy as np
import pytest

from jaxagent.errors import RolloutError
from jaxagent.rollout.context import History, check_prefix
from jaxagent.types import Completion, Stop


def completion(*ids: int, logprob: float = -0.5) -> Completion:
    n = len(ids)
    return Completion(np.asarray(ids, np.int32), np.full(n, logprob, np.float32), Stop.STOP, 0)


def test_append_only_history_is_one_segment():
    history = History()
    history.extend([1, 2, 3])
    history.sampled(completion(4, 5, 0), 0)
    history.extend([6, 7])
    assert history.ids_T.tolist() == [1, 2, 3, 4, 5, 0, 6, 7]
    assert len(history) == 8
    history.sampled(completion(8, logprob=-2.0), 1)
    (segment,) = history.segments()
    assert segment.ids_T.tolist() == [1, 2, 3, 4, 5, 0, 6, 7, 8]
    assert segment.mask_T.tolist() == [False] * 3 + [True] * 3 + [False] * 2 + [True]
    assert segment.step_T.tolist() == [-1, -1, -1, 0, 0, 0, -1, -1, 1]
    assert segment.logprobs["behaviour"].tolist() == [0, 0, 0, -0.5, -0.5, -0.5, 0, 0, -2]
    assert segment.ids_T.dtype == segment.step_T.dtype == np.int32


def test_rewritten_history_forks_and_every_sampled_token_is_trained_once():
    """Thought stripping: the second segment holds the first message without its thought, as plain context."""
    history = History()
    history.extend([1])
    history.sampled(completion(50, 51, 9, 0), 0)  # 50 51 is the thought
    history.extend([2])
    history.fork([1, 9, 0, 2])
    history.sampled(completion(8, 0), 1)
    first, second = history.segments()
    assert first.mask_T.tolist() == [False, True, True, True, True, False]
    assert second.ids_T.tolist() == [1, 9, 0, 2, 8, 0]
    assert second.mask_T.tolist() == [False] * 4 + [True] * 2
    assert second.step_T.tolist() == [-1] * 4 + [1] * 2


def test_a_segment_in_which_nothing_was_sampled_is_no_segment():
    history = History()
    history.extend([1, 2])
    assert history.segments() == ()


def test_prefix_check_names_the_token():
    stored = np.asarray([1, 2, 3], np.int32)
    check_prefix(stored, np.asarray([1, 2, 3], np.int32))
    check_prefix(stored, np.asarray([1, 2, 3, 4], np.int32))
    with pytest.raises(RolloutError, match="differ at token 1"):
        check_prefix(stored, np.asarray([1, 9, 3, 4], np.int32))
    with pytest.raises(RolloutError, match="differ at token 2"):
        check_prefix(stored, np.asarray([1, 2], np.int32))
