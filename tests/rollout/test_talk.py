"""Episodes at the level of messages: the same verdicts, statuses and failures as token episodes."""

import asyncio
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from jaxagent.envs.doors import DOORS
from jaxagent.envs.inline_pool import InlinePool
from jaxagent.errors import ConfigError, EnvFailure
from jaxagent.plan import Plan
from jaxagent.rollout.demonstrate import play
from jaxagent.rollout.limits import EpisodeLimits
from jaxagent.rollout.plans import RolloutRules, run_plans
from jaxagent.rollout.scripted import NOTHING, ExpertAgent, NoopAgent
from jaxagent.rollout.talk import ContextFull, Said, call_text, run_talk, written
from jaxagent.types import ExecStatus, Message, Status, Stop, ToolCall
from tests.rollout.tool_env import SUMS

TASK = DOORS.tasks("dev")[0]
ROOM = EpisodeLimits(context=10_000)


class Lines:
    """Says these lines in turn; an exception among them is raised. One player for every episode."""

    def __init__(self, *lines, tokens=None):
        self.lines, self.tokens, self.heard = list(lines), tokens, []

    def player(self, task, prompt, rollout):
        return self

    async def say(self, new, result):
        self.heard.append((new, result.observation))
        line = self.lines.pop(0)
        if isinstance(line, Exception):
            raise line
        said = line if isinstance(line, Message) else Message("assistant", line)
        return Said(said, Stop.STOP, *(self.tokens or (None, None)))


def talk(agent, spec=DOORS, task=TASK, limits=ROOM):
    return asyncio.run(run_talk(Plan(task, 1), 0, spec=spec, agent=agent, pool=InlinePool(), limits=limits))


@pytest.mark.parametrize("task", DOORS.tasks("dev")[:4], ids=lambda task: task.task_id)
def test_the_expert_plays_as_in_a_demonstration(task):
    trajectory = talk(ExpertAgent(DOORS), task=task)
    played = play(DOORS, task, rng=Random(0))
    assert [step.text for step in trajectory.steps] == list(played.texts)
    assert [step.action for step in trajectory.steps] == list(played.actions)
    assert [step.observation_after for step in trajectory.steps] == [
        r.observation for r in played.results[1:]
    ]
    assert [step.anchor for step in trajectory.steps] == [r.anchor for r in played.results[:-1]]
    assert trajectory.evaluation == played.evaluation
    assert trajectory.prompt == played.prompt
    assert trajectory.status is Status.DONE
    assert trajectory.extra["usage"] is None


def test_rollouts_of_a_sloppy_expert_differ_and_repeat():
    def texts(rollout):
        agent = ExpertAgent(DOORS, sloppiness=1.0)
        run = run_talk(Plan(TASK, 1), rollout, spec=DOORS, agent=agent, pool=InlinePool(), limits=ROOM)
        return [step.text for step in asyncio.run(run).steps]

    assert texts(0) == texts(0)
    assert len({tuple(texts(rollout)) for rollout in range(6)}) > 1


def test_an_environment_without_an_expert_says_so():
    with pytest.raises(ConfigError, match="no scripted expert"):
        ExpertAgent(replace(DOORS, expert=None))


def test_a_plan_that_begins_in_the_middle_is_refused():
    run = run_talk(
        Plan(TASK, 1, before=lambda opening: ()),
        0,
        spec=DOORS,
        agent=NoopAgent(),
        pool=InlinePool(),
        limits=ROOM,
    )
    with pytest.raises(ConfigError, match="plays from the start"):
        asyncio.run(run)


def test_the_noop_says_one_useless_sentence_and_is_judged():
    trajectory = talk(NoopAgent(), limits=EpisodeLimits(context=100, max_steps=1))
    assert [step.text for step in trajectory.steps] == [NOTHING]
    assert trajectory.steps[0].exec_status is ExecStatus.INVALID
    assert trajectory.status is Status.STEP_LIMIT
    assert not trajectory.success


def test_a_full_context_ends_the_episode_with_a_verdict():
    trajectory = talk(Lines(str(TASK.meta["colour"]), ContextFull("8192 tokens at most")))
    assert trajectory.status is Status.LENGTH
    assert len(trajectory.steps) == 1
    assert trajectory.evaluation is not None
    assert trajectory.evaluation.passed == 1


def test_the_agent_hears_the_opening_first_then_only_what_is_new():
    agent = Lines("red", "hat")
    trajectory = talk(agent)
    assert agent.heard[0][0] == trajectory.prompt.messages
    assert agent.heard[1][0] == (Message("user", trajectory.steps[0].observation_after),)


def test_the_policy_sees_cut_observations_and_a_script_the_whole():
    agent = Lines("red", "hat")
    trajectory = talk(agent, limits=EpisodeLimits(context=100, max_observation_chars=16))
    assert "[observation cut:" in trajectory.steps[0].observation_after
    assert "[observation cut:" in agent.heard[1][0][0].content
    assert "[observation cut:" not in agent.heard[1][1]


def test_token_counts_are_kept_if_every_message_has_them():
    assert talk(Lines("red", "hat", tokens=(7, 2))).extra["usage"] == {"context": [7, 7], "sampled": [2, 2]}
    assert talk(Lines("red", "hat", tokens=(7, None))).extra["usage"] is None


def test_calls_beside_the_content_are_executed_and_written_down():
    call = Message("assistant", "Adding.", tool_calls=(ToolCall("add", {"a": 1, "b": 10}),))
    trajectory = talk(Lines(call, "It is 11."), spec=SUMS, task=SUMS.tasks("dev")[0])
    assert trajectory.success
    assert trajectory.steps[0].action.tool_calls == (ToolCall("add", {"a": 1, "b": 10}),)
    assert trajectory.steps[0].text == written(call) == "Adding.\n" + call_text("add", '{"a": 1, "b": 10}')


def run(agent, retries):
    runner = partial(run_talk, spec=DOORS, agent=agent, pool=InlinePool(), limits=ROOM)
    return asyncio.run(run_plans([Plan(TASK, 2)], runner, rules=RolloutRules(concurrency=1, retries=retries)))


def test_an_agent_that_fails_is_asked_again_then_dropped_and_never_scored():
    fault = EnvFailure("endpoint", "HTTP 500")
    right = [str(TASK.meta["colour"]), str(TASK.meta["item"])]
    groups, metrics = run(Lines(fault, *right, fault, fault), retries=1)
    assert [t.success for t in groups[0].trajectories] == [True]
    assert [(d.rollout, d.reason) for d in groups[0].dropped] == [(1, "endpoint")]
    assert metrics["rollout/retries"] == 2


def test_an_expert_that_raises_is_a_failure_of_the_episode():
    class Broken:
        def act(self, observation):
            raise KeyError("secret")

    spec = replace(DOORS, expert=lambda task, rng, sloppiness: Broken())
    with pytest.raises(EnvFailure, match="KeyError"):
        talk(ExpertAgent(spec), spec=spec)
