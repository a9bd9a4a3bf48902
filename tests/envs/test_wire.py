"""Answers of environments that no JSON schema forbids and that would stop a run if they got through."""

import pytest

from jaxagent.envs.wire import decode_evaluation, decode_step, encode
from jaxagent.errors import EnvFailure
from jaxagent.types import Evaluation, StepResult

HUGE = 10**400  # JSON knows no largest number, float64 does


@pytest.mark.parametrize(
    "change",
    [
        {"reward": HUGE},
        {"reward": -HUGE},
        {"messages": [["user"]]},
        {"messages": [5]},
        {"messages": [["user", "a", "b"]]},
        {"messages": [{"role": "user"}]},
        {"messages": [[["user"], "a"]]},
    ],
)
def test_a_step_that_cannot_be_taken_is_garbage(change):
    with pytest.raises(EnvFailure) as caught:
        decode_step({**encode(StepResult("x")), **change})
    assert caught.value.kind == "garbage"


@pytest.mark.parametrize("score", [HUGE, float("nan"), float("inf"), 1e300])
def test_a_score_that_is_no_number_to_reckon_with_is_garbage(score):
    fields = {**encode(Evaluation(True, 1, 1)), "info": {"score": score}}
    with pytest.raises(EnvFailure, match="score=") as caught:
        decode_evaluation(fields)
    assert caught.value.kind == "garbage"


def test_other_information_is_the_environments_own():
    info = {"score": 0.5, "note": HUGE}
    assert decode_evaluation({**encode(Evaluation(True, 1, 1)), "info": info}).info == info
    assert decode_evaluation({**encode(Evaluation(True, 1, 1)), "info": {"score": "A"}}).info == {
        "score": "A"
    }
