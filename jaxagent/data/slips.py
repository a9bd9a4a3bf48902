"""Slips: an expert's message with one word wrong, as a model that samples gets one wrong.

    slip('apis.book.show(name="mezo")', rng)   →   apis.book.show(name="tifu")
                                               →   apis.book.show(kela="mezo")

Demonstrations with slips show what an expert-only demonstration never shows: an error message, and the right step after
it. A policy that has seen none answers its first error with noise.
"""

from __future__ import annotations

import re
from random import Random

WORD = re.compile(r"[A-Za-z]+")
CONSONANTS, VOWELS = "bdfghklmnprstvz", "aeiou"


def slip(text: str, rng: Random) -> str:
    """`text` with one of its words replaced by a made-up one; unchanged if it has no word."""
    words = list(WORD.finditer(text))
    if not words:
        return text
    wrong = rng.choice(words)
    made_up = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.randint(1, 2)))
    return text[: wrong.start()] + made_up + text[wrong.end() :]
