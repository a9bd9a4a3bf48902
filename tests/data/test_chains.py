"""Chains of tasks: what is planned, that rollouts keep to their own library, drops, and going on after a stop."""

import asyncio
import dataclasses
from functools import partial

import pytest

from jaxagent.data.chains import ChainShape, ChainSource, scenarios
from jaxagent.envs.inline_pool import InlinePool
from jaxagent.envs.world.env import WorldEnv
from jaxagent.envs.world.inline import InlineSandbox
from jaxagent.envs.world.spec import world_spec
from jaxagent.envs.world.tasks import tasks
from jaxagent.errors import ConfigError
from jaxagent.rewards.outcome import success
from jaxagent.rewards.skills import skill_integrated
from jaxagent.rollout.episode import task_key
from jaxagent.rollout.plans import RolloutRules, run_plans
from jaxagent.skills.hand_on import handing_on
from jaxagent.types import Dropped, Evaluation, ExecStatus
from tests.made_episodes import make_task
from tests.rollout.fake_policy import Scripted, char_runner

WORLD = dataclasses.replace(world_spec("easy"), make=partial(WorldEnv, sandbox=InlineSandbox))
EASY = tasks("easy", "train")[:30]


def source(pool=EASY, *, chains=1, rollouts=3, length=2, seed=0):
    return ChainSource(pool, ChainShape(chains, rollouts, length), handing_on(heading=""), seed=seed)


def rollout(plans, say, seed=1):
    """say: (task id, rollout, step) -> code."""
    by_key = {task_key(plan.task.task_id): plan.task.task_id for plan in plans}
    generate = Scripted(lambda key: say(by_key[key.task], key.rollout, key.step))

    async def run():
        async with InlinePool() as envs:
            runner = char_runner(WORLD, generate, envs, key_seed=seed, max_tokens=200, context=2000)
            return (await run_plans(plans, runner, rules=RolloutRules(retries=0)))[0]

    return asyncio.run(run()), generate


def define(task_id, number, step):
    return [f"def mine_{number}(x): return x + {number}", "apis.me.done()"][step]


def without(group, number):
    kept = tuple(t for t in group.trajectories if t.rollout != number)
    return dataclasses.replace(
        group, trajectories=kept, dropped=(Dropped(group.task.task_id, number, "hang"),)
    )


def test_only_scenarios_with_enough_tasks_make_chains():
    pool = [make_task(name, scenario=name[0]) for name in ("a1", "b1", "a2", "c1", "b2", "b3")]
    pool.append(make_task("lonely", scenario=""))
    assert [[task.task_id for task in members] for members in scenarios(pool, 2)] == [
        ["a1", "a2"],
        ["b1", "b2", "b3"],
    ]
    assert len(scenarios(pool, 3)) == 1
    with pytest.raises(ConfigError, match="at most 3"):
        scenarios(pool, 4)
    with pytest.raises(ConfigError, match="0 scenarios"):
        source([make_task("lonely", scenario="")])
    # The embedded world: three tasks a scenario.
    assert len({len(members) for members in scenarios(EASY, 3)}) == 1


def test_each_survivor_goes_on_alone_with_its_own_library():
    chains = source()
    (plan,) = chains.next(0)
    (first,), _ = rollout([plan], define)
    first = without(first, 1)
    second_plans = chains.follow_up([first])
    assert [(p.n, p.first, p.position, p.label) for p in second_plans] == [(1, 0, 1, ""), (1, 2, 1, "")]
    assert {p.task.scenario for p in second_plans} == {plan.task.scenario}
    assert {p.task.task_id for p in second_plans} != {plan.task.task_id}

    def reuse(task_id, number, step):
        other = 2 - number
        return [f"print(mine_{number}(40))", f"mine_{other}(1)", "apis.me.done()"][step]

    (second,), generate = rollout(second_plans, reuse, seed=2)
    assert (second.position, [t.rollout for t in second.trajectories]) == (1, [0, 2])
    for trajectory in second.trajectories:
        number = trajectory.rollout
        opening = trajectory.prompt.messages[0].content
        assert opening.startswith(f"def mine_{number}(x)\n\n")
        assert f"mine_{2 - number}" not in opening
        assert trajectory.steps[0].observation_after == str(40 + number)
        assert "NameError" in trajectory.steps[1].observation_after
        assert [result.exec_status for _, result in trajectory.before] == [ExecStatus.OK]
    keys = {request.key for request in generate.requests}
    assert len(keys) == len(generate.requests)  # every message draws from a stream of its own
    assert chains.follow_up([first, second]) == []
    solved = [
        dataclasses.replace(
            group,
            trajectories=tuple(
                dataclasses.replace(t, evaluation=Evaluation(True, 1, 1)) for t in group.trajectories
            ),
        )
        for group in (first, second)
    ]
    assert [[t.reward for t in group.trajectories] for group in skill_integrated(success)(solved)] == [
        [2, 2],
        [2, 2],
    ]


def test_nobody_goes_on_from_a_chain_without_survivors():
    chains = source(chains=2)
    plans = chains.next(0)
    groups, _ = rollout(plans, define)
    lost = dataclasses.replace(
        groups[0],
        trajectories=(),
        dropped=tuple(Dropped(groups[0].task.task_id, n, "hang") for n in range(3)),
    )
    more = chains.follow_up([lost, groups[1]])
    assert [plan.task.scenario for plan in more] == [plans[1].task.scenario] * 3
    assert chains.follow_up([lost]) == []


def test_longer_chains_carry_every_earlier_library():
    chains = source(length=3, rollouts=1)
    groups, _ = rollout(chains.next(0), lambda task, n, k: ["def one(): return 1", "apis.me.done()"][k])
    more, _ = rollout(
        chains.follow_up(groups),
        lambda task, n, k: ["def two(): return one() + 1", "apis.me.done()"][k],
        seed=2,
    )
    last = chains.follow_up([*groups, *more])
    assert [(plan.position, plan.first) for plan in last] == [(2, 0)]
    (third,), _ = rollout(last, lambda task, n, k: ["print(two())", "apis.me.done()"][k], seed=3)
    assert third.trajectories[0].steps[0].observation_after == "2"
    assert len({group.task.task_id for group in (*groups, *more, third)}) == 3
    assert chains.follow_up([*groups, *more, third]) == []


def test_a_scenario_that_is_drawn_twice_goes_on_counting():
    chains = source(EASY[:3], chains=3, rollouts=2)
    plans = chains.next(0)
    assert [(plan.n, plan.first) for plan in plans] == [(2, 0), (2, 2), (2, 4)]
    groups, _ = rollout(plans, define)
    more = chains.follow_up(groups)
    assert [plan.first for plan in more] == [0, 1, 2, 3, 4, 5]
    assert [plan.group for plan in more] == ["chain-0"] * 2 + ["chain-2"] * 2 + ["chain-4"] * 2
    second, _ = rollout(more, define, seed=2)
    assert sorted(t.rollout for group in second for t in group.trajectories) == [0, 1, 2, 3, 4, 5]
    assert len(second) == 3


def described(plans):
    return [(plan.task.task_id, plan.n, plan.first) for plan in plans]


def test_it_goes_on_where_it_was_stopped():
    whole, begun, resumed = (source(chains=4) for _ in range(3))
    expected = [described(whole.next(i)) for i in range(6)]
    assert [described(begun.next(i)) for i in range(3)] == expected[:3]
    resumed.restore(begun.state())
    again = [resumed.next(i) for i in range(3, 6)]
    assert [described(plans) for plans in again] == expected[3:]
    groups, _ = rollout(again[-1], define)
    whole_more, more = whole.follow_up(groups), resumed.follow_up(groups)
    assert described(whole_more) == described(more) != []
    assert len({tuple(sorted(p[0] for p in plans)) for plans in expected}) > 1
