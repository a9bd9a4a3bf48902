"""Actions played before the policy's first message: the environment knows them, the policy sees nothing of them."""

import asyncio

import pytest

from jaxagent.envs.inline_pool import InlinePool
from jaxagent.errors import ConfigError
from jaxagent.plan import Branch, Plan
from jaxagent.rollout.plans import RolloutRules, run_plans
from jaxagent.types import Action, Message, Prompt, Status
from tests.envs.fake_envs import echo_spec, echo_task
from tests.rollout.fake_policy import OPEN, Scripted, char_runner

SPEC = echo_spec(max_steps=4)
TASK = echo_task()


def rollout(plans, script=lambda key: ["a", "end"][key.step]):
    generate = Scripted(script)

    async def run():
        async with InlinePool() as envs:
            runner = char_runner(SPEC, generate, envs)
            return (await run_plans(plans, runner, rules=RolloutRules(retries=0)))[0]

    return asyncio.run(run()), generate


def defined(prompt):
    return (Action("one"), Action("two"))


def test_the_environment_takes_them_and_the_policy_does_not_see_them():
    ((group,), generate), ((plain,), _) = (
        rollout([Plan(TASK, 1, before=defined)]),
        rollout([Plan(TASK, 1)]),
    )
    episode, usual = group.trajectories[0], plain.trajectories[0]
    assert generate.requests[0].ids_T.tolist() == [*map(ord, "hello"), OPEN]
    assert [step.observation_before for step in episode.steps] == ["hello", "3 a"]
    assert [step.observation_after for step in usual.steps] == ["1 a", "2 end"]
    assert [(action.text, result.observation) for action, result in episode.before] == [
        ("one", "1 one"),
        ("two", "2 two"),
    ]
    assert episode.steps[0].anchor == "s2"  # of the state that they left
    assert usual.before == ()


def test_they_are_chosen_by_the_environments_own_opening():
    def echo(prompt):
        return (Action(prompt.messages[0].content),)

    def rewrite(prompt):
        return Prompt((Message("user", "other"),))

    ((group,), generate) = rollout([Plan(TASK, 1, before=echo, prompt=rewrite)])
    assert [action.text for action, _ in group.trajectories[0].before] == ["hello"]
    assert generate.requests[0].ids_T.tolist() == [*map(ord, "other"), OPEN]


@pytest.mark.parametrize("step", [0, 1])
def test_a_branch_repeats_them(step):
    ((group,), _) = rollout([Plan(TASK, 1, before=defined)])
    parent = group.trajectories[0]
    ((again,), _) = rollout([Plan(TASK, 1, branch=Branch(parent, step))], lambda key: "end")
    (episode,) = again.trajectories
    assert episode.before == parent.before
    assert episode.steps[0].observation_before == ["hello", "3 a"][step]
    assert episode.steps[0].observation_after == f"{3 + step} end"
    assert episode.steps[0].anchor == parent.steps[step].anchor


def test_an_episode_that_they_end_has_no_message():
    ((group,), generate) = rollout([Plan(TASK, 1, before=lambda prompt: (Action("end"),))])
    (episode,) = group.trajectories
    assert (episode.status, episode.steps, episode.segments) == (Status.DONE, (), ())
    assert not generate.requests


def test_a_plan_may_say_its_first_number_and_others_go_on_after_it():
    plans = [Plan(TASK, 1, first=3, group="g"), Plan(TASK, 1, first=1, group="g"), Plan(TASK, 2)]
    groups, _ = rollout(plans)
    assert [[item.rollout for item in group.trajectories] for group in groups] == [[3, 1], [4, 5]]
    with pytest.raises(ConfigError, match="rollout 2 of task 't' is planned twice"):
        rollout([Plan(TASK, 3), Plan(TASK, 1, first=2)])


def test_a_branch_takes_none_of_its_own():
    ((group,), _) = rollout([Plan(TASK, 1)])
    with pytest.raises(ConfigError, match="drop the plan's `before`"):
        Plan(TASK, 1, branch=Branch(group.trajectories[0], 0), before=defined)
