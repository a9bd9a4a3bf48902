"""Numbers for state texts: equal texts share one, and, with a threshold, texts that are nearly equal.

A new text joins the first cluster to whose first text it is similar enough, else it begins one. The similarity is
`SequenceMatcher(first, text).ratio()`, or what a common beginning, a common end and words in place show, if that is
more (`ratio` leaves frequent characters out of long texts). Two things keep it affordable. An upper bound, from how
often each character occurs, is tested against all clusters in one pass. And words in place mostly decide: texts that
differ in a few numbers never reach `ratio`.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher

import numpy as np
from jaxtyping import Float, Int

BINS = 64  # of characters; sharing one can only raise the bound
WORDS = re.compile(r"\w+|\W")


class StateIds:
    """Owner of the texts seen so far in one group. Call it with a text, get its number."""

    def __init__(self, similarity: float = 0.0):
        self.similarity = similarity
        self._known: dict[str, int] = {}
        self._heads: list[str] = []  # first text of each cluster
        self._count_CB = np.zeros((16, BINS), np.int32)  # characters of each head, by bin

    def __call__(self, text: str) -> int:
        number = self._known.get(text)
        if number is None:
            number = self._known[text] = self._place(text)
        return number

    def _place(self, text: str) -> int:
        if not self.similarity:
            return len(self._known)
        count_B = characters(text)
        found = self._first_alike(text, count_B)
        return self._begin(text, count_B) if found is None else found

    def _first_alike(self, text: str, count_B: Int[np.ndarray, "B"]) -> int | None:
        possible = np.flatnonzero(self._bounds(text, count_B) >= self.similarity)
        if not possible.size:
            return None
        match = SequenceMatcher()
        match.set_seq2(text)  # analysed once for all heads
        for index in possible.tolist():
            head = self._heads[index]
            if in_place_ratio(head, text) >= self.similarity:
                return index
            match.set_seq1(head)
            if match.ratio() >= self.similarity:
                return index
        return None

    def _bounds(self, text: str, count_B: Int[np.ndarray, "B"]) -> Float[np.ndarray, "C"]:
        """For every cluster the most that `ratio` with its first text can be."""
        count_CB = self._count_CB[: len(self._heads)]
        total_C = count_CB.sum(axis=1) + len(text)
        return 2 * np.minimum(count_CB, count_B).sum(axis=1) / np.maximum(total_C, 1)

    def _begin(self, text: str, count_B: Int[np.ndarray, "B"]) -> int:
        number = len(self._heads)
        if number == len(self._count_CB):
            self._count_CB = np.concatenate([self._count_CB, np.zeros_like(self._count_CB)])
        self._heads.append(text)
        self._count_CB[number] = count_B
        return number


def characters(text: str) -> Int[np.ndarray, "B"]:
    """How many of its characters fall into each bin."""
    code_X = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return np.bincount(code_X % BINS, minlength=BINS).astype(np.int32)


def in_place_ratio(a: str, b: str) -> float:
    """2 x (common beginning, common end, and equal words in the same places between them) / all characters.

    "mug 1 on desk 1." and "mug 2 on desk 2.": all but two characters of each, 28/32.
    """
    shorter = min(len(a), len(b))
    start = _agree(a, b, shorter)
    end = _agree(a[::-1], b[::-1], shorter - start)
    words = [WORDS.findall(text[start : len(text) - end]) for text in (a, b)]
    same = (
        sum(len(one) for one, other in zip(*words) if one == other) if len(words[0]) == len(words[1]) else 0
    )
    return 2 * (start + same + end) / max(len(a) + len(b), 1)


def _agree(a: str, b: str, most: int) -> int:
    """Characters that both begin with, at most `most`: by halving, each comparison at the speed of the machine."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if a.startswith(b[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low
