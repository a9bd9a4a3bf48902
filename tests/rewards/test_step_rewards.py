"""What a step was paid, and the parts of a return that belong to steps."""

from dataclasses import replace

import pytest

from jaxagent.recipes.rewards import RewardOptions, returns_of
from jaxagent.rewards.returns import PARTS
from jaxagent.rewards.step_rewards import environment_rewards, outcome_rewards
from jaxagent.types import Action, Group
from tests.made_episodes import make_step, make_task, make_trajectory


def rewarded(options, trajectory):
    return returns_of(RewardOptions.parse(options))([Group(make_task(), (trajectory,))])[0].trajectories[0]


def test_the_outcome_is_paid_at_the_end():
    assert outcome_rewards(make_trajectory(0.5, steps=["ok"] * 3)).tolist() == [0, 0, 0.5]
    assert outcome_rewards(make_trajectory(0.5, steps=[])).shape == (0,)


def test_penalties_and_subgoals_stay_at_their_steps():
    illegal = replace(make_step(1), action=Action(error="none found"))
    steps = [make_step(0, text="look"), illegal, make_step(2, text="look again")]
    trajectory = make_trajectory(steps=steps, success=True)
    gigpo = {"outcome": "success", "scale": 10.0, "invalid_action": -0.1}
    assert outcome_rewards(rewarded(gigpo, trajectory)) == pytest.approx([0, -0.1, 10])
    both = gigpo | {"subgoals": [{"name": "look", "message": "look", "weight": 0.2}]}
    found = rewarded(both, trajectory)
    assert found.reward == pytest.approx(10.1)
    assert outcome_rewards(found) == pytest.approx([0.2, -0.1, 10])


def test_a_cap_is_taken_off_at_the_end():
    """Terms of .4 under a cap of .3: the steps keep theirs, the return is 1.3 all the same."""
    subgoals = [{"name": text, "message": text, "weight": 0.2} for text in ("a", "b")]
    steps = [make_step(0, text="a"), make_step(1, text="b"), make_step(2)]
    options = {"outcome": "success", "subgoals": subgoals, "subgoal_cap": 1.0, "cap": 0.3}
    found = rewarded(options, make_trajectory(steps=steps, success=True))
    assert found.reward == pytest.approx(1.3)
    assert outcome_rewards(found) == pytest.approx([0.2, 0.2, 0.9])


def test_the_environment_may_pay_by_step():
    steps = [replace(make_step(k), reward=r) for k, r in enumerate([0.5, 0.0, 0.25])]
    assert environment_rewards(make_trajectory(9.0, steps=steps)).tolist() == [0.5, 0.0, 0.25]
    steps[1] = replace(steps[1], action=Action(error="none found"))
    shaped = rewarded(
        {"outcome": "success", "invalid_action": -0.1, "tool": 1.0}, make_trajectory(steps=steps)
    )
    tool = shaped.extra[PARTS]["tool"]
    assert environment_rewards(shaped) == pytest.approx([0.5, -0.1, 0.25 + tool])  # no verdict in it
