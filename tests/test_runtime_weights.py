"""Plans that name other weights than the policy's: who is loaded when, and what becomes of the policy's own plans."""

from dataclasses import replace

import pytest

from jaxagent.checks import own
from jaxagent.errors import ConfigError
from jaxagent.rollout.stats import rollout_metrics
from jaxagent.rollouts import Collected
from jaxagent.runtime import Runtime
from jaxagent.stage import Plan, Stage, Update
from jaxagent.types import Sampling
from tests.made_episodes import make_group, make_task


class Parts:
    """Engine, learner and rollouts of a runtime, which write down what they are asked."""

    version = 3

    def __init__(self):
        self.asked = []

    def weights(self, name):
        return name

    def load(self, params, version):
        self.asked.append((params, version))

    def run(self, plans, sampling, *, seed, hold=False):
        self.asked.append([plan.task.task_id for plan in plans])
        groups = tuple(make_group([1.0, 0.0], task=plan.task) for plan in plans)
        return Collected(groups, rollout_metrics(groups, submitted=2 * len(plans), retries=0))


def roll_out(plans, *, max_lag=0):
    run = object.__new__(Runtime)
    parts = run.engine = run._learner = run.rollouts = Parts()
    run.max_lag, run._stream, run._holds = max_lag, lambda *_: 0, lambda *_: False
    stage = Stage("s", None, 1, None, {}, Update(1e-3))
    return run._play(stage, Sampling(max_tokens=4), 0, plans, 0), parts.asked


PLANS = [
    Plan(make_task("a"), 2, weights="reference"),
    Plan(make_task("b"), 2),
    Plan(make_task("c"), 2, weights="reference"),
]


def test_the_policy_plays_first_and_is_back_in_the_decoder_at_the_end():
    collected, asked = roll_out(PLANS)
    assert asked == [["b"], ("reference", 3), ["a", "c"], ("current", 3)]
    assert [group.task.task_id for group in collected.groups] == ["b", "a", "c"]
    marks = [[t.extra.get("weights") for t in group.trajectories] for group in collected.groups]
    assert marks == [[None, None], ["reference"] * 2, ["reference"] * 2]
    assert collected.metrics["rollout/submitted"] == 6


def test_without_other_weights_nothing_is_loaded():
    _, asked = roll_out([replace(plan, weights="current") for plan in PLANS])
    assert asked == [["a", "b", "c"]]
    _, asked = roll_out([PLANS[0]])
    assert asked == [("reference", 3), ["a"], ("current", 3)]


def test_other_weights_do_not_sample_beside_the_policys():
    assert len(roll_out(PLANS[1:2], max_lag=1)[1]) == 1
    with pytest.raises(ConfigError, match="samples from other weights"):
        roll_out(PLANS, max_lag=1)


def test_the_decoder_is_compared_with_the_trainer_on_the_policys_own_samples():
    collected, _ = roll_out(PLANS)
    assert [len(group.trajectories) for group in own(collected.groups)] == [2, 0, 0]
