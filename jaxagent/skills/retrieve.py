"""Which skill the teacher gets. In: a task's skills and their record. Out: one skill, or None.

UCB1 over a buffer (Skill-SD): score(e) = mean_return(e) + c sqrt(ln N / n(e)); N is the number of
retrievals in the buffer, n(e) the skill's own. Skills that were never tried come first, oldest first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxagent.skills.bank import Skill


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
