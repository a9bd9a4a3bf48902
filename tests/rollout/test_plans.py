"""Many episodes: order, retries, drops, quorum, conservation, independence of timing and workers."""

import asyncio
import functools
import random

import numpy as np
import pytest

from jaxagent.envs.inline_pool import InlinePool
from jaxagent.envs.pool import Deadlines, EnvPool
from jaxagent.errors import ConfigError, EnvFailure, RolloutError
from jaxagent.plan import Plan
from jaxagent.rollout.plans import Held, Quorum, RolloutRules, run_plans
from jaxagent.rollout.settings import RolloutConfig
from jaxagent.rollouts import rules_of
from jaxagent.types import Prompt, Status, Trajectory
from tests.envs.fake_envs import echo_spec, echo_task
from tests.rollout.fake_policy import Scripted, char_runner

SPEC = echo_spec(max_steps=4)


def babble(key) -> str:
    """A reply that depends on the key only."""
    rng = random.Random(f"{key}")
    return rng.choice(["a", "bb", "?", "end", "flood"])


def runner(generate, pool, spec=SPEC):
    return char_runner(spec, generate, pool, key_seed=5, max_observation_chars=40)


def rollout(plans, *, generate=None, pool=InlinePool, rules=None, spec=SPEC, progress=None):
    async def run():
        async with pool() as envs:
            return await run_plans(
                plans, runner(generate or Scripted(babble), envs, spec), rules=rules, progress=progress
            )

    return asyncio.run(run())


def fingerprint(groups):
    """Everything of the groups that may not depend on timing."""
    return [
        (group.task.task_id, len(group.dropped), [
            (item.traj_id, item.status, [step.text for step in item.steps], item.success,
             [segment.ids_T.tolist() for segment in item.segments],
             [segment.logprobs["behaviour"].tolist() for segment in item.segments])
            for item in group.trajectories
        ])
        for group in groups
    ]  # fmt: skip


def test_groups_keep_the_order_of_plans_and_rollouts():
    shuffled = Scripted(babble, delay=lambda key: random.Random(f"x{key}").randrange(30))
    plans = [Plan(echo_task(f"task{n}"), 4) for n in (3, 1, 2)]
    groups, metrics = rollout(plans, generate=shuffled)
    assert [group.task.task_id for group in groups] == ["task3", "task1", "task2"]
    assert [[item.rollout for item in group.trajectories] for group in groups] == [[0, 1, 2, 3]] * 3
    assert (metrics["rollout/submitted"], metrics["rollout/kept"]) == (12, 12)
    straight, _ = rollout(plans)
    assert fingerprint(groups) == fingerprint(straight)


def test_results_do_not_depend_on_workers_or_concurrency():
    plans = [Plan(echo_task(f"task{n}"), 3) for n in range(4)]
    reference = fingerprint(rollout(plans)[0])
    for workers, concurrency in ((1, 1), (2, 5)):
        rules = RolloutRules(concurrency=concurrency)
        groups, _ = rollout(plans, pool=functools.partial(EnvPool, workers), rules=rules)
        assert fingerprint(groups) == reference


def test_concurrency_is_a_limit():
    generate = Scripted(babble, delay=lambda key: 3)
    rollout([Plan(echo_task("t"), 12)], generate=generate, rules=RolloutRules(concurrency=3))
    assert generate.most_live == 3


def test_members_of_a_group_draw_from_different_streams():
    generate = Scripted(babble)
    rollout([Plan(echo_task("t"), 4)], generate=generate)
    keys = [request.key for request in generate.requests]
    assert len(set(keys)) == len(keys)


def test_a_task_planned_twice_uses_no_stream_twice_but_a_paired_plan_does():
    def same(prompt: Prompt) -> Prompt:
        return prompt

    generate = Scripted(babble)
    plans = [
        Plan(echo_task("t"), 2),
        Plan(echo_task("t"), 2),
        Plan(echo_task("t"), 2, prompt=same, label="paired"),
    ]
    groups, _ = rollout(plans, generate=generate)
    assert [[item.rollout for item in group.trajectories] for group in groups] == [[0, 1], [2, 3], [0, 1]]
    assert len({item.traj_id for group in groups for item in group.trajectories}) == 6


def test_one_failing_rollout_of_32_is_dropped_and_counted():
    failing = echo_task("bad", fault="raised")
    plans = [Plan(failing if n == 3 else echo_task(f"task{n}"), 1) for n in range(32)]
    groups, metrics = rollout(plans, rules=RolloutRules(retries=2))
    assert [len(group.trajectories) for group in groups] == [0 if n == 3 else 1 for n in range(32)]
    (dropped,) = groups[3].dropped
    assert (dropped.reason, dropped.rollout, "env bug" in dropped.message) == ("raised", 0, True)
    assert metrics["rollout/submitted"] == metrics["rollout/kept"] + metrics["rollout/dropped"] == 32
    assert metrics["rollout/dropped/raised"] == 1
    assert metrics["rollout/retries"] == 2


def test_a_failure_that_goes_away_is_retried_to_the_same_result(tmp_path):
    fault = tmp_path / "fault"
    fault.touch()
    faulty = [Plan(echo_task("t", fault="raised", once=str(fault)), 2)]
    groups, metrics = rollout(faulty, rules=RolloutRules(concurrency=1))
    healthy, _ = rollout([Plan(echo_task("t"), 2)])
    assert metrics["rollout/retries"] == 1
    assert fingerprint(groups) == fingerprint(healthy)


@pytest.mark.parametrize(("fault", "reason"), [("hang", "hang"), ("exit", "died"), ("none", "garbage")])
def test_hanging_dying_and_garbage_environments_are_dropped_and_the_rest_goes_on(fault, reason):
    pool = functools.partial(EnvPool, 2, deadlines=Deadlines(step_s=1.0))
    plans = [Plan(echo_task("good"), 3), Plan(echo_task("bad", fault=fault), 1)]
    groups, metrics = rollout(plans, pool=pool, rules=RolloutRules(retries=3, concurrency=2))
    assert [len(group.trajectories) for group in groups] == [3, 0]
    assert metrics[f"rollout/dropped/{reason}"] == 1
    assert metrics["rollout/kept"] == 3


def sleeper(times: dict[int, float], statuses: dict[int, Status] | None = None):
    """A runner whose rollout i takes times[i] seconds and ends with statuses[i]."""

    async def run(plan: Plan, rollout: int) -> Trajectory:
        await asyncio.sleep(times.get(rollout, 0.0))
        status = (statuses or {}).get(rollout, Status.DONE)
        return Trajectory(f"{plan.task.task_id}:{rollout}", plan.task, rollout, status, Prompt(()), (), ())

    return run


def test_quorum_cuts_stragglers_and_counts_them():
    plans = [Plan(echo_task("a"), 4), Plan(echo_task("b"), 4)]
    rules = RolloutRules(quorum=Quorum(fraction=0.7, per_task=3))
    groups, metrics = asyncio.run(run_plans(plans, sleeper({3: 60.0}), rules=rules))
    assert [len(group.trajectories) for group in groups] == [3, 3]
    assert [dropped.reason for group in groups for dropped in group.dropped] == ["cancelled"] * 2
    assert metrics["rollout/submitted"] == 8 == metrics["rollout/kept"] + metrics["rollout/dropped/cancelled"]


def held_rounds(*rounds, times, hold=(True, True, False), fraction=0.7):
    """Rounds of plans one after another, stragglers of one going on into the next; the groups and counts of each."""

    async def run():
        held, out = Held(), []
        for plans, holds, slow in zip(rounds, hold, times):
            quorum = Quorum(fraction=fraction, hold=True) if holds else None
            found = await run_plans(plans, sleeper(slow), rules=RolloutRules(quorum=quorum), held=held)
            out.append((*found, held.episodes))
        return out

    return asyncio.run(run())


def kept_of(groups):
    return [(group.task.task_id, len(group.trajectories)) for group in groups]


def test_groups_with_stragglers_go_on_into_the_next_round_and_come_whole():
    """One of three groups is not whole when 70 % have ended: all its episodes are held, the ended ones too."""
    first = [Plan(echo_task("a"), 2), Plan(echo_task("b"), 5), Plan(echo_task("c"), 2)]
    second = [Plan(echo_task("d"), 4)]
    one, two = held_rounds(first, second, times=({4: 0.3}, {}), hold=(True, False))
    assert kept_of(one[0]) == [("a", 2), ("c", 2)]
    assert kept_of(two[0]) == [("b", 5), ("d", 4)]
    assert [item.rollout for item in two[0][0].trajectories] == [0, 1, 2, 3, 4]
    assert (one[1]["rollout/held_out"], two[1]["rollout/held_in"], two[1]["rollout/held_out"]) == (5, 5, 0)
    assert two[2] == 0


def test_counts_add_up_over_rounds_that_hold():
    rounds = [[Plan(echo_task(f"{name}{i}"), n) for i, n in enumerate((3, 4))] for name in "xyz"]
    found = held_rounds(*rounds, times=({3: 0.2}, {3: 1.0}, {3: 0.05}), fraction=0.8)
    total = {
        name: sum(m.get(f"rollout/{name}", 0) for _, m, _ in found)
        for name in ("submitted", "kept", "dropped")
    }
    assert total == {"submitted": 21, "kept": 21, "dropped": 0}
    assert [held for _, _, held in found] == [4, 4, 0]


def test_a_shared_group_is_held_as_a_whole():
    plans = [Plan(echo_task("a"), 3, group="g"), Plan(echo_task("a"), 2, label="x", group="g")]
    rounds = ([*plans, Plan(echo_task("b"), 1)], [Plan(echo_task("c"), 1)])
    one, two = held_rounds(*rounds, times=({2: 0.3}, {}), hold=(True, False))
    assert (kept_of(one[0]), one[2]) == ([("b", 1)], 5)
    assert kept_of(two[0]) == [("a", 5), ("c", 1)]


def test_what_is_held_can_be_given_up():
    cancelled = []

    async def run():
        async def slow(plan: Plan, rollout: int) -> Trajectory:
            try:
                await asyncio.sleep(60 if rollout else 0)
            except asyncio.CancelledError:
                cancelled.append(rollout)
                raise
            return Trajectory(
                f"{plan.task.task_id}:{rollout}", plan.task, rollout, Status.DONE, Prompt(()), (), ()
            )

        held = Held()
        plans = [Plan(echo_task("a"), 1), Plan(echo_task("b"), 2)]
        rules = RolloutRules(quorum=Quorum(fraction=0.5, hold=True))
        await run_plans(plans, slow, rules=rules, held=held)
        await held.cancel()
        assert held.episodes == 0

    asyncio.run(run())
    assert cancelled == [1]


def test_a_run_file_sets_the_quorum():
    """LOOP's: 90 % of all episodes and 4 of the 6 of every task. Without a share there is none."""
    sizes = {"max_steps": 3, "max_tokens": 8, "context": 64}
    config = RolloutConfig.parse({**sizes, "quorum": 0.9, "quorum_per_task": 4})
    assert rules_of(config).quorum == Quorum(0.9, per_task=4)
    assert rules_of(RolloutConfig.parse({**sizes, "quorum": 0.5})).quorum == Quorum(0.5, per_task=2)
    assert rules_of(RolloutConfig.parse(sizes)).quorum is None
    for bad, message in (
        ({"quorum": 0.9, "quorum_per_task": 1}, "quorum_per_task"),
        ({"quorum_per_task": 4}, "below 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            RolloutConfig.parse({**sizes, **bad})


def test_quorum_waits_for_the_minimum_of_every_task():
    plans = [Plan(echo_task("a"), 4)]
    rules = RolloutRules(quorum=Quorum(fraction=0.25, per_task=4))
    groups, _ = asyncio.run(run_plans(plans, sleeper({3: 0.05}), rules=rules))
    assert len(groups[0].trajectories) == 4


@pytest.mark.parametrize("status", [Status.CANCELLED, Status.ENV_FAILED])
def test_cancelled_and_failed_trajectories_never_reach_a_baseline(status):
    groups, metrics = asyncio.run(run_plans([Plan(echo_task("a"), 3)], sleeper({}, {0: status, 2: status})))
    assert [item.rollout for item in groups[0].trajectories] == [1]
    assert metrics[f"rollout/dropped/{status.value}"] == 2


def test_faults_of_ours_stop_the_run_and_cancel_the_others():
    cancelled = []

    async def run(plan: Plan, rollout: int) -> Trajectory:
        if rollout == 1:
            raise RolloutError("a bug")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(rollout)
            raise
        raise AssertionError

    with pytest.raises(RolloutError, match="a bug"):
        asyncio.run(run_plans([Plan(echo_task("a"), 3)], run))
    assert sorted(cancelled) == [0, 2]


def test_a_stall_is_reported_with_the_names_of_the_open_episodes():
    with pytest.raises(RolloutError, match="open: a:0, a:1"):
        asyncio.run(
            run_plans([Plan(echo_task("a"), 2)], sleeper({0: 60, 1: 60}), rules=RolloutRules(stall_s=0.05))
        )


def test_progress_is_reported_for_every_episode():
    seen: list[tuple[int, int]] = []
    rollout([Plan(echo_task("a"), 3)], progress=lambda done, total: seen.append((done, total)))
    assert sorted(seen) == [(1, 3), (2, 3), (3, 3)]


def test_metrics_of_a_known_rollout():
    """Two episodes: "a", "end" (done) and four cut, failing messages (step limit)."""
    generate = Scripted(lambda key: ["a", "end"][key.step] if key.rollout == 0 else "?" * 30)
    groups, metrics = rollout([Plan(echo_task("t"), 2)], generate=generate)
    tokens = sum(len(item.segments[0].ids_T) for item in groups[0].trajectories)
    assert metrics["rollout/turns"] == 3
    assert metrics["rollout/sampled_tokens"] == 2 + 4 + 4 * 20
    assert metrics["rollout/agent_frac"] == pytest.approx(86 / tokens)
    assert metrics["rollout/truncated"] == pytest.approx(4 / 6)
    assert metrics["rollout/exec_fail"] == pytest.approx(4 / 6)
    assert metrics["rollout/success"] == 0.5
    assert (metrics["rollout/status/done"], metrics["rollout/status/step_limit"]) == (0.5, 0.5)
    assert metrics["rollout/env_s"] > 0


def test_impossible_rules_are_refused():
    with pytest.raises(ConfigError, match="concurrency=0"):
        RolloutRules(concurrency=0)
    with pytest.raises(ConfigError, match="fraction"):
        Quorum(fraction=1.5)
    with pytest.raises(ConfigError, match="0 rollouts"):
        rollout([Plan(echo_task("t"), 0)])


def test_failure_kinds_reach_the_counts():
    async def run(plan: Plan, rollout: int) -> Trajectory:
        if rollout == 0:
            raise EnvFailure("hang", "no answer")
        return Trajectory("t", plan.task, rollout, Status.DONE, Prompt(()), (), ())

    groups, metrics = asyncio.run(run_plans([Plan(echo_task("a"), 2)], run, rules=RolloutRules(retries=0)))
    assert groups[0].dropped[0].message == "no answer"
    assert metrics["rollout/dropped/hang"] == 1
    assert np.isfinite(list(metrics.values())).all()


def test_an_environment_that_always_fails_stops_the_run_with_its_message():
    with pytest.raises(RolloutError, match=r"not one of 3 episodes survived: \{'reset': 3\}") as caught:
        rollout([Plan(echo_task("a", fault="reset"), 3)], rules=RolloutRules(retries=1))
    assert "cannot reset" in str(caught.value)


def test_plans_of_one_group_name_share_a_group_in_their_order():
    plans = [
        Plan(echo_task("a"), 2, label="skill", group="both", position=1),
        Plan(echo_task("b"), 1),
        Plan(echo_task("a"), 1, group="both", position=1),
        Plan(echo_task("a"), 1),
    ]
    groups, _ = rollout(plans)
    ids = [[item.traj_id for item in group.trajectories] for group in groups]
    assert ids == [["a:0:skill", "a:1:skill", "a:0"], ["b:0"], ["a:1"]]
    assert [group.position for group in groups] == [1, 0, 0]
