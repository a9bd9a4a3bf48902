"""The score of an episode of a task that a model wrote: a judge's, who has seen the task's reference solution.

AgentEvolver (arXiv 2511.10395). The judge gives 0 to 40 for a failure and 60 to 100 for a success; asking it is not the
job of this file.
"""

from __future__ import annotations

from jaxagent.errors import RolloutError

BEST = 100.0
LOOPING, LOOPING_AT_MOST = 3, 20.0  # so many equal actions in a row, and what is then the most


def reference_score(score: float | None, *, longest_run: int = 0) -> float:
    """The judge's score as a return in [0, 1]; no answer that can be read is 0.

    80 -> .8. longest_run: of equal actions one after another; three of them cap the score at 20.
    """
    if score is None:
        return 0.0
    if not 0 <= score <= BEST:
        raise RolloutError(f"a judge's score of {score}; the scale is 0 to {BEST:g}")
    return (min(score, LOOPING_AT_MOST) if longest_run >= LOOPING else score) / BEST
