import pytest

from jaxagent.errors import RolloutError
from jaxagent.rewards.reference import reference_score


def test_a_judges_score_is_a_return():
    """80 of 100 is .8; an answer that cannot be read is 0; three equal actions in a row leave 20 at most."""
    assert [reference_score(80), reference_score(None)] == [0.8, 0.0]
    assert [reference_score(80, longest_run=run) for run in (2, 3)] == [0.8, 0.2]
    assert reference_score(10, longest_run=5) == 0.1


@pytest.mark.parametrize("wrong", [-1, 101])
def test_scores_off_the_scale_are_refused(wrong):
    with pytest.raises(RolloutError, match="0 to 100"):
        reference_score(wrong)
