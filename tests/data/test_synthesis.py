"""What is kept of tasks that a model wrote: the specification's numbers, ties, and what is missing."""

import numpy as np
import pytest

from jaxagent.data.synthesis import closest, confident, deduplicated, least_tried, synthetic_tasks
from jaxagent.errors import ConfigError
from jaxagent.skills.retrieve import jaccard

BOB, AGAIN, MUSIC = "Send 5 dollars to Bob", "send 5 dollars to bob now", "play some music"


def test_queries_of_the_same_words_are_kept_once():
    """5 of 6 words are shared, .8333; with the other nothing is."""
    assert jaccard(BOB, [AGAIN, MUSIC], sizes=(1,)) == pytest.approx([0.833333, 0.0], abs=1e-6)
    assert deduplicated([BOB, AGAIN, MUSIC], [0.9, 0.8, 0.7]) == [0, 2]
    assert deduplicated([BOB, AGAIN, MUSIC], [0.8, 0.9, 0.95]) == [2, 1]  # the most confident of both
    assert deduplicated([BOB, AGAIN], [0.9, 0.8], threshold=0.84) == [0, 1]
    assert deduplicated([BOB, BOB], [0.5, 0.5]) == [0]
    assert deduplicated([], []) == []


def test_a_writer_must_be_sure_and_must_say_so():
    assert [confident(value) for value in (0.9, 0.69, None)] == [True, False, False]
    assert confident(0.7)


def test_the_action_tried_least_is_next():
    assert least_tried({"login": 2, "search": 0, "list": 1}) == "search"
    assert least_tried({"a": 1, "b": 1}) == "a"
    with pytest.raises(ConfigError, match="reset the environment"):
        least_tried({})


def test_a_share_of_an_iterations_tasks_is_synthetic():
    assert synthetic_tasks(32, 0.5) == 16
    assert [synthetic_tasks(32, share) for share in (0, 1)] == [0, 32]
    assert synthetic_tasks(100, 0.29) == 29  # .29 x 100 is 28.999999999999996
    with pytest.raises(ConfigError, match=r"share=1\.5"):
        synthetic_tasks(32, 1.5)


def test_how_near_a_sample_is_to_what_there_is():
    """(.6, .8) is .8 from (0, 1); (.99, .14) is .9901 from (1, 0), above a limit of .9."""
    pool = np.eye(2)
    found = [closest(np.array(new), pool) for new in ((0.6, 0.8), (0.99, 0.14))]
    assert found == pytest.approx([0.8, 0.990149], abs=1e-6)
    assert closest(np.array([1.0, 0.0]), np.zeros((0, 2))) == -1.0
