"""Forced tools: the distribution by hand, whose tokens they are, that a retry repeats them, what is refused."""

import asyncio
import dataclasses
import json

import numpy as np
import pytest

from jaxagent.chat.tools import parse_tool_calls
from jaxagent.envs.inline_pool import InlinePool
from jaxagent.errors import ConfigError, RolloutError
from jaxagent.rollout.branch import extend_to
from jaxagent.rollout.context import History
from jaxagent.rollout.episode import EpisodeLimits, run_episode
from jaxagent.rollout.explore import FORCED, call_opening, forced_tools, mixed_with_uniform
from jaxagent.rollout.stats import rollout_metrics
from jaxagent.stage import Branch
from jaxagent.types import Group, Message, SampleKey, Sampling, Status
from tests.envs.fake_envs import echo_spec, echo_task
from tests.rollout.fake_policy import END, CharRenderer, Scripted
from tests.rollout.tool_env import ADD, SUMS

TASK = SUMS.tasks("train")[0]  # 1 and 10
ARGUMENTS = ' {"a": 1, "b": 10}}\n</tool_call>'


def play(script, *, epsilon=1.0, spec=SUMS, task=TASK, rollout=0, context=1000, key_seed=3):
    generate = Scripted(script)

    async def run():
        return await run_episode(
            spec,
            task,
            rollout=rollout,
            generate=generate,
            pool=InlinePool(),
            renderer=CharRenderer(),
            sampling=Sampling(max_tokens=80, tool_epsilon=epsilon),
            limits=EpisodeLimits(context=context),
            key_seed=key_seed,
        )

    return asyncio.run(run()), generate


def test_the_distribution_of_the_example():
    """.9 pi + .1 / 3."""
    found = mixed_with_uniform(np.array([0.7, 0.2, 0.1]), 0.1)
    assert found == pytest.approx([0.663333, 0.213333, 0.123333], abs=1e-6)
    assert found.sum() == pytest.approx(1)
    assert mixed_with_uniform(np.array([1.0, 0.0]), 1.0).tolist() == [0.5, 0.5]


def test_a_forced_message_is_whole_for_the_environment_and_its_beginning_is_nobodys():
    """The call is parsed and run; only what was sampled is trained on, scored, and counted as the step's."""
    trajectory, generate = play(lambda key: ARGUMENTS if key.step < 3 else "ok", epsilon=1.0)
    (segment,) = trajectory.segments
    opening = [ord(char) for char in call_opening("add")]
    first = trajectory.steps[0]
    assert [call.arguments for call in first.action.tool_calls] == [{"a": 1, "b": 10}]
    assert first.observation_after == "11"
    assert first.ids_T.tolist() == [*(ord(char) for char in ARGUMENTS), END]
    assert generate.requests[0].ids_T[-len(opening) :].tolist() == opening
    start = int(np.flatnonzero(segment.mask_T)[0])
    assert segment.ids_T[start - len(opening) : start].tolist() == opening
    assert segment.step_T[start - len(opening) : start].tolist() == [-1] * len(opening)
    assert segment.mask_T.sum() == sum(len(step.ids_T) for step in trajectory.steps)
    assert trajectory.extra[FORCED] == [0, 1, 2, 3]
    assert json.loads(json.dumps(trajectory.extra[FORCED])) == [0, 1, 2, 3]


def test_without_epsilon_nothing_is_forced():
    trajectory, _ = play(lambda key: "the sum is 11", epsilon=0.0)
    assert trajectory.steps[0].text == "the sum is 11"
    assert FORCED not in trajectory.extra


def test_about_epsilon_of_the_messages_are_forced_each_tool_as_often_and_again_after_a_retry():
    tools = [{"name": "add"}, {"type": "function", "function": {"name": "take"}}]

    def drawn(rollout):
        key = SampleKey(0, 5, rollout, 0)
        return [
            "".join(map(chr, forced_tools(tools, 0.25, renderer=CharRenderer(), key=key)(step)))
            for step in range(4)
        ]

    found = [text for rollout in range(500) for text in drawn(rollout)]
    forced = [text for text in found if text]
    assert len(forced) / 2000 == pytest.approx(0.25, abs=0.04)
    assert set(forced) == {call_opening("add"), call_opening("take")}
    assert sum("take" in text for text in forced) / len(forced) == pytest.approx(0.5, abs=0.1)
    assert drawn(7) == drawn(7)


def test_the_beginning_is_that_of_a_legal_call():
    message = Message("assistant", call_opening("add") + ARGUMENTS)
    (call,) = parse_tool_calls(message, (ADD,)).tool_calls
    assert (call.name, dict(call.arguments)) == ("add", {"a": 1, "b": 10})


def test_a_context_without_room_for_a_call_is_not_forced():
    """The opening takes 28 tokens: with 60 a call's beginning of 38 does not fit, and the policy speaks freely."""
    trajectory, _ = play(lambda key: "11", context=60)
    assert FORCED not in trajectory.extra
    assert trajectory.status is Status.DONE


def test_an_opening_without_tools_is_refused():
    with pytest.raises(ConfigError, match=r"tool_epsilon=0\.5: the environment's opening describes no tools"):
        play(lambda key: "a", spec=echo_spec(), task=echo_task(), epsilon=0.5)


def test_a_forced_message_cannot_be_branched_off():
    trajectory, _ = play(lambda key: ARGUMENTS)
    with pytest.raises(RolloutError, match=r"message 1 of .* was made to begin with a tool"):
        extend_to(Branch(trajectory, 1), History())
    extend_to(Branch(dataclasses.replace(trajectory, extra={FORCED: [0]}), 1), History())


def test_the_share_of_forced_messages_is_logged():
    forced, _ = play(lambda key: ARGUMENTS)
    free, _ = play(lambda key: "11", epsilon=0.0, rollout=1)
    metrics = rollout_metrics([Group(TASK, (forced, free))], submitted=2, retries=0)
    assert metrics["rollout/forced_tools"] == 4 / 5
    assert "rollout/forced_tools" not in rollout_metrics([Group(TASK, (free,))], submitted=1, retries=0)
