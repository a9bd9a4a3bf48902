"""CoEvolve's signals at the specification's numbers, and that nothing to learn from gives nothing."""

from dataclasses import replace

import pytest

from jaxagent.data.signals import Signal, SignalRules, at_the_boundary, forgotten, rare, signals
from jaxagent.errors import ConfigError
from jaxagent.types import Group, Status
from tests.made_episodes import make_group, make_task, make_trajectory

USES = {"login": 600, "search": 390, "rate_song": 9, "delete": 1}


def test_forgetting_looks_back_over_the_window():
    """Solved three groups ago, four groups ago, not failed now, never played."""
    cases = [([1, 0, 0], 0.0), ([1, 0, 0, 0], 0.0), ([1, 1], 0.5), ([], 0.0)]
    assert [forgotten(history, now, window=3) for history, now in cases] == [True, False, False, False]


def test_a_boundary_has_both_outcomes():
    groups = ([1, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0])
    assert [at_the_boundary(outcomes) for outcomes in groups] == [True, False, False]
    assert not at_the_boundary([])


def test_rare_actions_are_below_a_percentage_of_all_uses():
    found = rare(USES)
    assert {action: action in found for action in USES} == {
        "login": False,
        "search": False,
        "rate_song": True,
        "delete": True,
    }
    assert rare({**USES, "never": 0}) == found
    assert rare({name: count // 2 for name, count in USES.items()}) == []  # fewer uses than the least
    assert rare({**USES, "rate_song": 90}) == ["delete"]  # asked anew, a risen share is no signal
    assert rare({}, least=0) == []


def test_what_was_forgotten_goes_before_a_boundary_before_what_is_rare():
    lost = make_group([0.0, 0.0, 1.0], task=make_task("both"))  # mean 1/3: forgotten, and at the boundary
    solved = make_group([1.0, 1.0], task=make_task("solved"))
    found = signals([solved, lost], {"both": [1.0], "solved": [0.0]}, USES, SignalRules())
    assert found == [
        Signal("forgetting", "both"),
        Signal("boundary", "both"),
        Signal("rare", "rate_song"),
        Signal("rare", "delete"),
    ]


def test_signals_read_the_verdict_of_survivors():
    """A shaped return of .9 is no success; an episode that was dropped says nothing."""
    task = make_task()
    shaped = make_trajectory(0.9, success=False, task=task)
    dropped = make_trajectory(1.0, task=task, rollout=1, status=Status.ENV_FAILED)
    assert signals([Group(task, (shaped, dropped))], {}, {}, SignalRules()) == []
    assert signals([Group(task, (dropped,))], {"t0": [1.0]}, {}, SignalRules()) == []
    assert signals([Group(task, (shaped,))], {"t0": [1.0]}, {}, SignalRules()) == [Signal("forgetting", "t0")]


def test_without_a_signal_there_is_nothing_to_write():
    """Solved by all, failed by all and never solved before, and no action is rare: the tasks stay as they are."""
    groups = [make_group([1.0, 1.0]), replace(make_group([0.0, 0.0]), task=make_task("hard"))]
    assert signals(groups, {"hard": [0.0, 0.0]}, {"login": 600, "search": 400}, SignalRules()) == []


@pytest.mark.parametrize("wrong", [{"window": 0}, {"success_at": 0.0}, {"rare_percent": 101}])
def test_bad_rules_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SignalRules(**wrong)
