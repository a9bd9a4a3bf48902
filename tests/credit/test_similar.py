"""Clusters of similar states: the measure, and that its bounds never change what it decides."""

from difflib import SequenceMatcher
from random import Random

import numpy as np
import pytest

from jaxagent.credit.similar import StateIds, characters, in_place_ratio


def ratio(a, b):
    return SequenceMatcher(None, a, b).ratio()


def similarity(a, b):
    return max(ratio(a, b), in_place_ratio(a, b))


def greedy(texts, threshold):
    """The definition, without the bound."""
    heads, numbers = [], []
    for text in texts:
        near = [i for i, head in enumerate(heads) if similarity(head, text) >= threshold]
        numbers.append(near[0] if near else len(heads))
        if not near:
            heads.append(text)
    return numbers


def test_the_measure_at_the_worked_values():
    """Two observations of 39 characters that differ in one digit: 76 of 78 in common, .974359. Unrelated: .357143."""
    shelf = [
        "You arrive at shelf 1. On it is mug 11.",
        "You arrive at shelf 1. On it is mug 12.",
        "Nothing happens.",
    ]
    assert in_place_ratio(*shelf[:2]) == ratio(*shelf[:2]) == pytest.approx(0.974359, abs=1e-6)
    fridge = "You open a fridge"
    assert ratio(fridge, shelf[0]) == pytest.approx(0.357143, abs=1e-6)
    assert [ids(text) for ids in [StateIds(0.95)] for text in (shelf[0], fridge)] == [0, 1]
    ids = StateIds(0.95)
    assert [ids(text) for text in (*shelf, shelf[0])] == [0, 0, 1, 0]
    assert [StateIds(0.99)(text) for text in shelf] == [0, 0, 0]  # each alone in its own group
    equal = StateIds(0.0)
    assert [equal(text) for text in (*shelf, shelf[0])] == [0, 1, 2, 0]


def test_a_text_joins_the_first_cluster_that_is_near_enough():
    """c is as near to b's cluster as to a's: it joins a's, which is older."""
    a, c, b = "x" * 8 + "aa", "x" * 8 + "ab", "x" * 8 + "bb"
    ids = StateIds(0.9)
    assert [ids(text) for text in (a, b, c)] == [0, 1, 0]


@pytest.mark.parametrize("threshold", [0.3, 0.6, 0.8, 0.95, 1.0])
def test_the_bounds_change_nothing(threshold):
    """Against the definition, on texts of a few words, of equal and unequal lengths, some of them not ASCII."""
    random = Random(0)
    words = ["mug", "plate", "desk", "shelf", "1", "2", "on", "the", "é", "鍵", "open", ""]
    texts = [" ".join(random.choice(words) for _ in range(random.randint(0, 7))) for _ in range(150)]
    ids = StateIds(threshold)
    assert [ids(text) for text in texts] == greedy(texts, threshold)


def test_long_texts_that_differ_in_the_middle_are_alike():
    """`ratio` alone leaves frequent characters out from 200 characters on, and finds nothing in common here."""
    a, b = "ab" * 300 + "1" + "ba" * 300, "ab" * 300 + "2" + "ba" * 300
    ids = StateIds(0.95)
    assert [ids(a), ids(b)] == [0, 0]
    assert in_place_ratio(a, b) == 2400 / 2402


def test_words_in_place_and_characters():
    assert in_place_ratio("mug 1.", "mug 2.") == 10 / 12
    assert in_place_ratio("mug 1 on desk 1.", "mug 2 on desk 2.") == 28 / 32
    assert in_place_ratio("a 1 b 22 c", "a 33 b 4 c") == 2 * (2 + 3 + 2) / 20  # numbers of other lengths
    assert in_place_ratio("1 b 2", "3 d b 4") == 0.0  # a word more: words are not in place
    assert in_place_ratio("", "") == 0.0
    assert in_place_ratio("aaa", "aa") == 4 / 5  # what begins alike does not count again at the end
    assert characters("aab").sum() == 3
    assert characters("")[0] == 0
    assert np.array_equal(characters("\ud800a"), characters("a\ud800"))  # a lone surrogate is a character too


def test_clusters_beyond_the_first_block_of_memory():
    ids = StateIds(0.95)
    texts = [chr(65 + i) * 20 for i in range(50)]
    assert [ids(text) for text in texts] == list(range(50))
    assert [ids(text + "") for text in reversed(texts)] == list(reversed(range(50)))
