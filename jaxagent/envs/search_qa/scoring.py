"""Exact match and F1 of an answer, as SQuAD and HotpotQA score them. In: strings. Out: numbers in [0, 1].

"The Eiffel Tower!" and "eiffel tower"            exact match 1, F1 1
"barack hussein obama" and "barack obama"         exact match 0, F1 0.8  (precision 2/3, recall 1)
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

ARTICLE = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
CLOSED = {"yes", "no", "noanswer"}  # HotpotQA gives no part marks where either answer is one of these


def normalised(text: str) -> str:
    """Lower case, without ASCII punctuation, English articles and repeated spaces, in that order."""
    return " ".join(ARTICLE.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def exact_match(answer: str, golds: Sequence[str]) -> float:
    """1 if the answer equals one of the gold answers."""
    return float(any(normalised(answer) == normalised(gold) for gold in golds))


def f1(answer: str, golds: Sequence[str]) -> float:
    """Word overlap with the gold answer that fits best."""
    return max((_f1(normalised(answer), normalised(gold)) for gold in golds), default=0.0)


def _f1(answer: str, gold: str) -> float:
    if answer == gold:
        return 1.0
    if {answer, gold} & CLOSED:
        return 0.0
    said, wanted = answer.split(), gold.split()
    shared = (Counter(said) & Counter(wanted)).total()
    return 2 * shared / (len(said) + len(wanted)) if shared else 0.0
