"""Which skill is shown. In: skills, or their texts, and a record or a request. Out: one of them, or none.

UCB1 over a buffer (Skill-SD): score(e) = mean_return(e) + c sqrt(ln N / n(e)); N is the number of
retrievals in the buffer, n(e) the skill's own. Skills that were never tried come first, oldest first.

By likeness to a request: n-gram Jaccard or the cosine of embeddings (skills/embed.py), then the k best above a floor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from jaxagent.skills.bank import Skill
from jaxagent.skills.embed import Embed, word_ngrams

Likeness = Callable[[str, Sequence[str]], Float[np.ndarray, "N"]]
"""(request, texts) -> how much each text resembles the request; 1 at most."""


def ucb_scores(skills: Sequence[Skill], total: int, *, c: float = 1.0) -> list[float]:
    """Scores in order; infinite for an untried skill. At N = 1, ln N is 0 and the mean alone decides."""
    return [
        math.inf if not s.retrievals else s.mean_return + c * math.sqrt(math.log(total) / s.retrievals)
        for s in skills
    ]


def pick_ucb(skills: Sequence[Skill], total: int, *, c: float = 1.0) -> Skill | None:
    """The skill of highest score, the oldest of equals."""
    if not skills:
        return None
    scores = ucb_scores(skills, total, c=c)
    return skills[scores.index(max(scores))]


def explores(skills: Sequence[Skill], picked: Skill) -> bool:
    """Whether a pick is untried or not the best by mean return: the UCB exploration rate counts these."""
    return not picked.retrievals or picked.mean_return < max(s.mean_return for s in skills if s.retrievals)


def jaccard(
    request: str, texts: Sequence[str], *, sizes: Sequence[int] = (1, 2, 3)
) -> Float[np.ndarray, "N"]:
    """Shared word n-grams of all words n-grams of both, n = 1 to 3.

    "pay the bill", "pay the rent": 3 shared (pay, the, pay the) of 9 -> 1/3. Two texts without words share nothing.
    """
    wanted = set(word_ngrams(request, sizes))
    grams = [set(word_ngrams(text, sizes)) for text in texts]
    return np.array([len(wanted & other) / (len(wanted | other) or 1) for other in grams], np.float64)


def cosine(embed: Embed) -> Likeness:
    """Likeness of embeddings."""

    def likeness(request: str, texts: Sequence[str]) -> Float[np.ndarray, "N"]:
        rows_ND = embed([request, *texts])
        return (rows_ND[1:] @ rows_ND[0]).astype(np.float64)

    return likeness


def top_k(likeness_N: Float[np.ndarray, "N"], k: int, *, floor: float = -1.0) -> list[int]:
    """Indices of the k largest that reach the floor, best first, the earliest of equals."""
    order = np.argsort(-likeness_N, kind="stable")
    return [int(i) for i in order[:k] if likeness_N[i] >= floor]
