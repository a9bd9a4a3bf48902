"""Continuations from the middle of a stored trajectory, token by token."""

import asyncio
import dataclasses
import functools
import random

import numpy as np
import pytest

from jaxagent.envs.inline_pool import InlinePool
from jaxagent.envs.pool import EnvPool
from jaxagent.errors import ConfigError, RolloutError
from jaxagent.plan import Branch, Plan
from jaxagent.rollout.plans import RolloutRules, run_plans
from jaxagent.types import Status
from tests.envs.fake_envs import EchoEnv, echo_spec, echo_task
from tests.rollout.fake_policy import END, LINE, OPEN, Scripted, char_runner

SPEC = echo_spec(max_steps=6)
TASK = echo_task()


class Fickle(EchoEnv):
    """Answers the second action otherwise in every environment of the process."""

    made = 0

    def step(self, action):
        type(self).made += 1
        result = super().step(action)
        return dataclasses.replace(result, observation=f"{result.observation} #{self.made}")


def rollout(plans, script, *, spec=SPEC, pool=InlinePool, seed=5, **limits):
    generate = Scripted(script)

    async def run():
        async with pool() as envs:
            runner = char_runner(spec, generate, envs, key_seed=seed, max_tokens=30, **limits)
            return await run_plans(plans, runner, rules=RolloutRules(retries=0))

    return *asyncio.run(run()), generate


def stored(**options):
    """prompt "hello"; "a" -> "1 a"; "b" -> "2 b"; "c" -> "3 c"; "end" -> done."""
    groups, _, _ = rollout([Plan(TASK, 1)], lambda key: ["a", "b", "c", "end"][key.step], **options)
    return groups[0].trajectories[0]


def ids(text: str) -> list[int]:
    return [ord(char) for char in text]


PREFIX = [*ids("hello"), OPEN, ord("a"), END, LINE, *ids("1 a"), OPEN, ord("b"), END, LINE, *ids("2 b"), OPEN]


@pytest.mark.parametrize("pool", [InlinePool, functools.partial(EnvPool, 2)], ids=["inline", "processes"])
def test_a_branch_goes_on_with_the_stored_tokens_as_context(pool):
    plan = Plan(TASK, 2, branch=Branch(stored(), 2))
    groups, metrics, generate = rollout([plan], lambda key: ["x", "end"][key.step - 2], pool=pool)
    assert [item.rollout for item in groups[0].trajectories] == [0, 1]
    for item in groups[0].trajectories:
        (segment,) = item.segments
        tail = [ord("x"), END, LINE, *ids("3 x"), OPEN, *ids("end"), END]
        assert segment.ids_T.tolist() == PREFIX + tail
        assert segment.step_T.tolist() == [-1] * len(PREFIX) + [0, 0, *[-1] * 5, 1, 1, 1, 1]
        assert segment.mask_T.tolist() == [step >= 0 for step in segment.step_T]
        assert [(step.k, step.text, step.observation_after) for step in item.steps] == [
            (0, "x", "3 x"),  # the environment's count: it was brought to the same state
            (1, "end", "4 end"),
        ]
        assert item.steps[0].observation_before == "2 b"
        assert (item.status, item.success, item.extra["branch"]) == (Status.DONE, True, "t:0/2")
    assert sorted({request.key.step for request in generate.requests}) == [2, 3]
    assert metrics["rollout/sampled_tokens"] == 2 * 6


def test_a_trained_branch_has_the_earlier_steps_as_they_were():
    parent = stored()
    groups, _, _ = rollout([Plan(TASK, 1, branch=Branch(parent, 2, trained=True))], lambda key: "end")
    (item,) = groups[0].trajectories
    (segment,), (before,) = item.segments, parent.segments
    end = len(PREFIX)
    assert segment.ids_T.tolist() == [*PREFIX, *ids("end"), END]
    np.testing.assert_array_equal(segment.mask_T[:end], before.mask_T[:end])
    np.testing.assert_array_equal(segment.step_T[:end], before.step_T[:end])
    np.testing.assert_array_equal(segment.logprobs["behaviour"][:end], before.logprobs["behaviour"][:end])
    assert item.steps[:2] == parent.steps[:2]
    assert [step.k for step in item.steps] == [0, 1, 2]
    for step in item.steps:
        np.testing.assert_array_equal(segment.ids_T[segment.step_T == step.k], step.ids_T)


def test_a_branch_at_the_first_message_shares_the_prompt_only():
    groups, _, _ = rollout([Plan(TASK, 1, branch=Branch(stored(), 0))], lambda key: "end")
    (item,) = groups[0].trajectories
    assert item.segments[0].ids_T.tolist() == [*ids("hello"), OPEN, *ids("end"), END]


def test_a_branch_of_a_branch():
    def branched(parent, step, said):
        plan = Plan(TASK, 1, branch=Branch(parent, step, trained=True))
        (group,), _, _ = rollout([plan], lambda key: said[key.step - step])
        return group.trajectories[0]

    parent = branched(stored(), 1, ["y", "z", "end"])
    assert [step.text for step in parent.steps] == ["a", "y", "z", "end"]
    child = branched(parent, 3, ["q", "end"])
    assert [step.observation_after for step in child.steps] == ["1 a", "2 y", "3 z", "4 q", "5 end"]
    assert child.traj_id == "t:0/1:0/3:0"


def test_branches_draw_from_streams_of_their_own():
    """Not from the parent's: rollout 0 of a branch would sample the parent's continuation again."""
    parent = stored()
    plans = [Plan(TASK, 2), Plan(TASK, 2, branch=Branch(parent, 1)), Plan(TASK, 2, branch=Branch(parent, 2))]
    _, _, generate = rollout([*plans, plans[1]], lambda key: "a" if key.step < 3 else "end")
    streams = [(r.key.task, r.key.rollout) for r in generate.requests if r.key.step == 3]
    assert len(set(streams)) == len(streams) == 8


def test_results_do_not_depend_on_workers():
    parent = stored()
    plans = [Plan(TASK, 4, branch=Branch(parent, step)) for step in (0, 1, 3)]

    def script(key):
        return random.Random(f"{key}").choice(["a", "bb", "?", "end"])

    runs = [rollout(plans, script, pool=pool)[0] for pool in (InlinePool, functools.partial(EnvPool, 2))]
    first, second = (
        [
            [(t.traj_id, t.status, t.segments[0].ids_T.tolist()) for t in group.trajectories]
            for group in groups
        ]
        for groups in runs
    )
    assert first == second


def test_cut_observations_are_compared_as_they_were_cut():
    parent, _, _ = rollout([Plan(TASK, 1)], lambda key: ["flood", "end"][key.step], max_observation_chars=20)
    branch = Branch(parent[0].trajectories[0], 1)
    (group,), _, _ = rollout([Plan(TASK, 1, branch=branch)], lambda key: "end", max_observation_chars=20)
    assert group.trajectories[0].steps[0].observation_before.startswith("x" * 20)
    assert not group.dropped


def test_an_environment_that_answers_otherwise_is_dropped_as_diverged():
    spec = dataclasses.replace(SPEC, make=Fickle)
    plans = [Plan(TASK, 1), Plan(TASK, 2, branch=Branch(stored(spec=spec), 1))]
    groups, metrics, _ = rollout(plans, lambda key: "end", spec=spec)
    assert [item.reason for item in groups[1].dropped] == ["diverged"] * 2
    assert "step 1 of 1" in groups[1].dropped[0].message
    assert metrics["rollout/dropped/diverged"] == 2


def test_the_step_limit_counts_from_the_start_of_the_task():
    (group,), _, _ = rollout([Plan(TASK, 1, branch=Branch(stored(), 3))], lambda key: "more")
    assert [len(item.steps) for item in group.trajectories] == [3]
    assert group.trajectories[0].status is Status.STEP_LIMIT


def test_branches_that_cannot_be():
    parent = stored()
    with pytest.raises(ConfigError, match="expected 0 to 3"):
        Branch(parent, 4)
    with pytest.raises(ConfigError, match="branches off an episode of 't'"):
        Plan(echo_task("other"), 1, branch=Branch(parent, 1))
    with pytest.raises(ConfigError, match="under the prompt of its trajectory"):
        Plan(TASK, 1, prompt=lambda prompt: prompt, branch=Branch(parent, 1))
    several = dataclasses.replace(
        parent,
        segments=(
            dataclasses.replace(
                parent.segments[0],
                step_T=np.where(parent.segments[0].step_T == 0, -1, parent.segments[0].step_T),
            ),
        ),
    )
    with pytest.raises(RolloutError, match="several segments"):
        rollout([Plan(TASK, 1, branch=Branch(several, 2, trained=True))], lambda key: "end")
