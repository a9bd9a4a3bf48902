"""Retrieval by likeness: hand-computed Jaccard values, cosine order, the floor, ties. UCB is in test_bank.py."""

import numpy as np
import pytest

from jaxagent.skills.embed import hashed
from jaxagent.skills.retrieve import cosine, jaccard, top_k


def test_jaccard_by_hand():
    """pay, the, pay the are shared; bill, rent, the bill, the rent and both whole texts are not: 3 of 9."""
    values = jaccard("Pay the bill", ["pay the rent", "delete notes", "PAY the bill.", ""])
    assert values.tolist() == pytest.approx([1 / 3, 0.0, 1.0, 0.0])
    assert jaccard("", [""]).tolist() == [0.0]
    assert jaccard("pay the bill", ["bill the pay"], sizes=(1,)).tolist() == [1.0]
    assert jaccard("pay the bill", []).tolist() == []


def test_cosine_of_given_vectors():
    vectors = {"q": [1.0, 0.0], "a": [0.6, 0.8], "b": [1.0, 0.0], "c": [-1.0, 0.0]}
    likeness = cosine(lambda texts, /: np.array([vectors[text] for text in texts], np.float32))
    assert likeness("q", ["a", "b", "c"]).tolist() == pytest.approx([0.6, 1.0, -1.0])


def test_cosine_of_hashed_texts_finds_the_like_one():
    likeness_N = cosine(hashed)("pay the water bill", ["delete all notes", "pay the power bill"])
    assert top_k(likeness_N, 1, floor=0.3) == [1]
    assert top_k(likeness_N, 2, floor=0.99) == []
    assert cosine(hashed)("x", []).tolist() == []


def test_top_k_takes_the_earliest_of_equals_and_stops_at_the_floor():
    likeness_N = np.array([0.2, 0.9, 0.4, 0.9])
    assert top_k(likeness_N, 3) == [1, 3, 2]
    assert top_k(likeness_N, 3, floor=0.4) == [1, 3, 2]
    assert top_k(likeness_N, 3, floor=0.41) == [1, 3]
    assert top_k(likeness_N, 0) == []
    assert top_k(np.zeros(0), 3) == []
