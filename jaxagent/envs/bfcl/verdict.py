"""The benchmark's check of a turn, by the package's own comparisons.

`multi_turn_checker` runs the whole conversation again by evaluating text; here the same three conditions are
checked on the instances that the conversation used, turn by turn (tests compare the two on all entries):
    (a) the assistant called something, where the ground truth does;
    (b) the public attributes of every instance equal those after the ground truth's calls;
    (c) the ground truth's results of this turn are among all results so far, counted with multiplicity.
A turn without ground truth asks nothing of the state: the assistant should find that it cannot act yet.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from jaxagent.envs.bfcl.backend import Backend

CHECKER = "bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker"


def turn_fault(
    model: Backend, truth: Backend, *, called: bool, results: Sequence[str], expected: Sequence[str]
) -> str:
    """What is wrong at the end of a turn, or "". `truth` has made this turn's calls, with results `expected`."""
    if not expected:
        return ""
    if not called:
        return "no function was called"
    checker = importlib.import_module(CHECKER)
    state = checker.state_checker(model.instances, truth.instances)
    if not state["valid"]:
        return f"{state['error_message']} Attributes: {', '.join(state['details']['differences'])}"
    response = checker.response_checker(list(results), list(expected), 0)
    if not response["valid"]:
        return f"results are missing: {'; '.join(response['details']['missing_items'])[:300]}"
    return ""
