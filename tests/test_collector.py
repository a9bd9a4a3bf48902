"""Rounds of an iteration: whose weights play which plans, from which random streams, what plays on or begins ahead."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from jaxagent.checks import own
from jaxagent.collected import Collected
from jaxagent.collector import Collector, stream
from jaxagent.config import RunConfig
from jaxagent.errors import ConfigError
from jaxagent.plan import Plan
from jaxagent.rollout.stats import rollout_metrics
from jaxagent.stage import Stage, Update
from jaxagent.types import Sampling
from jaxagent.weights import Weights
from tests.made_episodes import make_group, make_task


class Parts:
    """Engine, learner and rollouts of a run, which write down what they are asked."""

    version = 3
    holding = False

    def __init__(self):
        self.asked = []

    def weights(self, name):
        return name

    def load(self, params, version):
        self.asked.append((params, version))

    def run(self, plans, sampling, *, seed, hold=False):
        self.seed, self.hold = seed, hold
        self.asked.append([plan.task.task_id for plan in plans])
        groups = tuple(make_group([1.0, 0.0], task=plan.task) for plan in plans)
        return Collected(groups, rollout_metrics(groups, submitted=2 * len(plans), retries=0))


def a_collector(*, ending=False, quiet=(), **rollout):
    """With the parts that it asks; nothing may be in flight after so many iterations as `quiet` holds."""
    parts = Parts()
    weights = Weights(SimpleNamespace(params=None), parts, turns=False)
    weights._learner = parts
    values = {"run_dir": "r", "model": {"source": "m"}, "env": {"name": "e"}, "stages": [{"recipe": "s"}]}
    sizes = {"max_steps": 1, "max_tokens": 1, "context": 8}
    config = RunConfig.parse({**values, "rollout": {**sizes, **rollout}})
    return Collector(parts, weights, config, ending=lambda: ending, quiet=lambda done: done in quiet), parts


def a_stage(iterations=1, **more):
    return Stage("s", None, iterations, None, {}, Update(1e-3), sampling=Sampling(max_tokens=4), **more)


def roll_out(plans, **rollout):
    collector, parts = a_collector(**rollout)
    try:
        return collector.rollout(a_stage(), plans, 0), parts.asked
    finally:
        collector.ahead.close(lambda: None)


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


# Two of three episodes make a quorum; the others play on, and an iteration may begin ahead.
PARTIAL = {"partial": True, "quorum": 0.7, "max_lag": 2}


@pytest.mark.parametrize(
    ("more", "iteration", "held", "begun"),
    [
        ({}, 0, True, [1]),
        ({}, 2, False, []),  # the stage's last iteration
        ({"quiet": (1,)}, 0, False, []),  # saved after the first
        ({"quiet": (2,)}, 0, True, [1]),
        ({"quiet": (2,)}, 1, False, []),
        ({"ending": True}, 0, False, []),
    ],
)
def test_nothing_is_in_flight_when_the_run_is_saved_measured_or_ends(more, iteration, held, begun):
    collector, parts = a_collector(**PARTIAL, **more)
    collector.rollout(a_stage(3), PLANS[1:2], iteration)
    assert parts.hold == held
    assert collector.may_begin(a_stage(3), iteration) == begun
    collector.ahead.close(lambda: None)


def test_a_stage_that_follows_up_runs_in_step():
    collector, parts = a_collector(**PARTIAL)
    stage = a_stage(3, follow_up=lambda groups: [])
    collector.rollout(stage, PLANS[1:2], 0)
    assert not parts.hold
    assert collector.may_begin(stage, 0) == []
    collector.ahead.close(lambda: None)


def test_random_streams_differ_by_stage_iteration_round_and_rollback():
    names = [(0, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (1, 0, 0, 0)]
    seeds = [stream(*name) for name in names] + [stream(0, 0, 0, 0, rolled_back=1)]
    assert len(set(seeds)) == 6
    assert seeds[0] == 1207832273  # crc32("0/0/0") >> 1: a run that goes on draws what it would have drawn
