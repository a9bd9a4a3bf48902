import pytest

from jaxagent.data.preferences import backed_up, best_and_worst, pairs, ranked_value
from jaxagent.errors import ConfigError


def test_values_of_a_search_tree():
    """A visit with a return of 1 after three worth .5: .625. Tree .7 and critic .9, half each: .8."""
    assert backed_up(0.5, 3, 1.0) == 0.625
    assert backed_up(0.0, 0, 1.0) == 1.0
    assert ranked_value(0.7, 0.9) == pytest.approx(0.8)
    assert ranked_value(0.7, 0.9, alpha=1.0) == 0.7
    with pytest.raises(ConfigError, match="alpha=2"):
        ranked_value(0.7, 0.9, alpha=2)


def test_pairs_differ_by_the_threshold():
    """.7 and .5 are a pair at .2, .5 and .4 are none."""
    assert [bool(pairs(values, least=0.2)) for values in ((0.7, 0.5), (0.5, 0.4))] == [True, False]
    assert pairs((0.1, 0.9, 0.5), least=0.4) == [(1, 0), (1, 2), (2, 0)]
    assert pairs((0.5, 0.5), least=0.01) == []
    with pytest.raises(ConfigError, match="equal values prefer nothing"):
        pairs((0.5, 0.5), least=0.0)


def test_the_best_and_the_worst_of_four():
    """Scores 3, 5, 2, 4: the second before the third, a gap of 3; a tie prefers nothing."""
    scores = (3, 5, 2, 4)
    assert best_and_worst(scores) == (1, 2)
    assert scores[1] - scores[2] == 3
    assert best_and_worst((4, 4)) is None
    assert best_and_worst(()) is None
