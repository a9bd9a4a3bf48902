"""Dynamic sampling: batches until enough groups differ, counted over rounds, groups whole."""

import asyncio

import pytest

from jaxagent.collected import Collected, collected_with, joined
from jaxagent.credit.filters import by_success, varies, zero_std
from jaxagent.credit.group import group_std, per_group
from jaxagent.data.refill import Refill
from jaxagent.data.tasks import TaskSource
from jaxagent.errors import ConfigError, DivergenceError
from jaxagent.rewards.outcome import success
from jaxagent.rewards.returns import each
from jaxagent.rollout.plans import run_plans
from jaxagent.types import Status
from tests.made_episodes import make_task, make_trajectory

G, TASKS = 2, 4
# Which of a batch's four tasks have one solved and one failed rollout: 1, 2, 1 of 4, then all.
SCRIPT = ("1000", "0110", "0001", "1111", "1111")


class ScriptedPolicy:
    """Tasks are met in the order in which they are drawn; the script says which groups differ. Rounds are recorded."""

    def __init__(self, script=SCRIPT, lost=()):
        self.differs, self.rounds, self.lost, self.met = "".join(script), [], lost, {}

    async def __call__(self, plan, rollout):
        number = self.met.setdefault(plan.task.task_id, len(self.met))
        solved = rollout == 0 if self.differs[number] == "1" else number % 2 == 0
        status = Status.ENV_FAILED if (number, rollout) in self.lost else Status.DONE
        return make_trajectory(0.0, success=solved, task=plan.task, rollout=rollout, status=status)

    def play(self, plans):
        self.rounds.append([plan.task.task_id for plan in plans])
        groups, metrics = asyncio.run(run_plans(plans, self))
        return Collected(tuple(groups), metrics)


def source(size=20):
    return TaskSource([make_task(f"t{i}") for i in range(size)], tasks=TASKS, rollouts=G, seed=3)


def refill(tasks, **options):
    values = {"batch": TASKS, "wanted": TASKS, "informative": varies(by_success)}
    return Refill(tasks.draw, **values | options)


def collect(policy, tasks, **options):
    """One iteration as the run does it: the source's plans, then whatever the refill asks for."""
    more = refill(tasks, **options)
    return collected_with(more, tasks.next(0), lambda plans, number: policy.play(plans)), more


def test_four_groups_of_batches_that_have_one_two_one_take_three_batches():
    policy, tasks = ScriptedPolicy(), source()
    collected, more = collect(policy, tasks)
    assert [len(names) for names in policy.rounds] == [4, 4, 4]
    # The source goes on, it does not repeat.
    assert len({name for names in policy.rounds for name in names}) == 12
    assert more.metrics(collected.groups) == {
        "refill/batches": 3.0,
        "refill/informative": 4.0,
        "refill/surplus": 0.0,
        "refill/missing": 0.0,
    }
    assert tasks.state()["position"] == 12  # what a checkpoint then holds


def test_every_rollout_of_every_round_is_counted():
    """3 rounds of 4 groups of 2, two of them lost: 24 submitted = 22 kept + 2 dropped."""
    collected, _ = collect(ScriptedPolicy(lost={(1, 0), (6, 1)}), source(), batches=3)
    metrics = collected.metrics
    counts = [metrics[f"rollout/{name}"] for name in ("submitted", "kept", "dropped")]
    assert counts == [24.0, 22.0, 2.0]
    assert metrics["rollout/dropped/env_failed"] == 2.0
    assert sum(len(g.trajectories) + len(g.dropped) for g in collected.groups) == 24


def test_groups_stay_whole_and_the_surplus_is_left_out():
    """Batches with 3 and 4 groups that differ: the first 4 of 7 are trained, both rollouts of each."""
    collected, more = collect(ScriptedPolicy(("1101", "1111")), source())
    assert more.metrics(collected.groups)["refill/surplus"] == 3.0
    credit = zero_std(per_group(group_std()), metric=by_success, limit=TASKS)
    credited = credit(each(success)(collected.groups))
    informative = [group for group in collected.groups if varies(by_success)(group)]
    assert [item.trajectory.task.task_id for item in credited] == [
        group.task.task_id for group in informative[:TASKS] for _ in range(G)
    ]


def test_a_limit_of_batches():
    nothing = ("0000",) * 5
    collected, more = collect(ScriptedPolicy(nothing), source(), batches=2)
    assert more.metrics(collected.groups) == {
        "refill/batches": 2.0,
        "refill/informative": 0.0,
        "refill/surplus": 0.0,
        "refill/missing": 4.0,
    }
    with pytest.raises(DivergenceError, match="2 batches of 4 tasks gave 1 of 4 groups"):
        collect(ScriptedPolicy(("1000", "0000")), source(), batches=2, partial=False)


def test_smaller_batches_than_the_iteration_needs():
    tasks = TaskSource([make_task(f"t{i}") for i in range(20)], tasks=2, rollouts=G, seed=0)
    collected, more = collect(ScriptedPolicy(("11", "01", "10", "11")), tasks, batch=2)
    assert more.used(collected.groups) == 3


def test_returns_are_set_where_the_rule_reads_them():
    """Rollouts carry no return before rewards: by reward alone nothing would ever differ."""
    for returns, rounds in ((None, 4), (each(success), 1)):
        policy = ScriptedPolicy(("1111",) * 4)
        collected, more = collect(policy, source(), returns=returns, informative=varies(), batches=4)
        assert more.used(collected.groups) == len(policy.rounds) == rounds


def test_rounds_join_into_one_iteration():
    policy, tasks = ScriptedPolicy(("1111",) * 2), source()
    first, second = policy.play(tasks.draw()), policy.play(tasks.draw())
    both = joined(first, second)
    assert both.groups == first.groups + second.groups
    assert both.metrics["rollout/submitted"] == 16.0


def test_bad_sizes_are_refused():
    with pytest.raises(ConfigError, match="batch=0"):
        refill(source(), batch=0)
