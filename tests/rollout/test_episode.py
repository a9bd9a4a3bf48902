"""One episode against hand-written tokens, and every way in which it can end."""

import asyncio
import dataclasses
import itertools

import numpy as np
import pytest

from jaxagent.envs.inline_pool import InlinePool
from jaxagent.envs.replay import cap_observation
from jaxagent.errors import ConfigError, EnvFailure, RolloutError
from jaxagent.plan import Plan
from jaxagent.rollout.episode import PLAIN, Setup, run_episode, task_key
from jaxagent.rollout.limits import EpisodeLimits
from jaxagent.rollout.review import plain_prompt
from jaxagent.types import Completion, ExecStatus, Message, Prompt, Sampling, Status, Stop
from tests.envs.fake_envs import echo_spec, echo_task
from tests.rollout.fake_policy import END, LINE, OPEN, CharRenderer, Scripted


def play(
    script,
    *,
    spec=None,
    task=None,
    context=1000,
    max_tokens=50,
    max_steps=0,
    generate=None,
    renderer=None,
    **asked,
):
    """asked: fields of the plan."""
    generate = generate or Scripted(script)

    async def run():
        setup = Setup(
            spec or echo_spec(),
            generate,
            InlinePool(),
            renderer or CharRenderer(),
            Sampling(max_tokens=max_tokens),
            EpisodeLimits(context=context, max_steps=max_steps),
            seed=11,
        )
        return await run_episode(setup, Plan(task or echo_task(), 1, **asked), 3)

    return asyncio.run(run()), generate


def ids(text: str) -> list[int]:
    return [ord(char) for char in text]


def test_tokens_masks_steps_and_logprobs_of_two_turns():
    """Prompt hello OPEN, "a" END, LINE "1 a" OPEN, "end" END; log-prob of token t of step k: -k - t/100."""
    trajectory, generate = play(lambda key: ["a", "end"][key.step])
    (segment,) = trajectory.segments
    assert segment.ids_T.tolist() == [
        *ids("hello"), OPEN, ord("a"), END, LINE, *ids("1 a"), OPEN, *ids("end"), END,
    ]  # fmt: skip
    assert segment.step_T.tolist() == [-1] * 6 + [0] * 2 + [-1] * 5 + [1] * 4
    assert segment.mask_T.tolist() == [step >= 0 for step in segment.step_T]
    expected = [0.0] * 6 + [0, -0.01] + [0.0] * 5 + [-1, -1.01, -1.02, -1.03]
    np.testing.assert_allclose(segment.logprobs["behaviour"], expected, rtol=1e-6)
    for step in trajectory.steps:
        np.testing.assert_array_equal(segment.ids_T[segment.step_T == step.k], step.ids_T)
        np.testing.assert_array_equal(segment.logprobs["behaviour"][segment.step_T == step.k], step.logprob_T)
    assert (trajectory.status, trajectory.success) == (Status.DONE, True)
    assert len(set(generate.released)) == len({request.session for request in generate.requests}) == 1


def test_the_twelve_token_example():
    """3 prompt, 3 action with end-of-turn, 3 observation, 2 action cut by the context (no pad is stored)."""
    spec = dataclasses.replace(
        echo_spec(),
        prompt=lambda task, first: Prompt((Message("user", "pp"),)),
        observe=lambda text: Message("user", "o"),
    )
    trajectory, _ = play(lambda key: ["ab", "abcd"][key.step], spec=spec, context=11)
    (segment,) = trajectory.segments
    assert segment.mask_T.astype(int).tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1]
    assert segment.step_T.tolist() == [-1, -1, -1, 0, 0, 0, -1, -1, -1, 1, 1]
    assert [len(step.ids_T) for step in trajectory.steps] == [3, 2]
    assert segment.mask_T.mean() == pytest.approx(5 / 11)
    last = trajectory.steps[1]
    assert (last.stop, last.exec_status, last.observation_after) == (Stop.MAX_TOKENS, ExecStatus.NONE, "")
    assert trajectory.status is Status.LENGTH
    assert trajectory.evaluation is not None


def test_steps_record_the_state_before_the_message():
    trajectory, _ = play(lambda key: ["a", "b", "end"][key.step])
    assert [step.observation_before for step in trajectory.steps] == ["hello", "1 a", "2 b"]
    assert [step.observation_after for step in trajectory.steps] == ["1 a", "2 b", "3 end"]
    assert [step.anchor for step in trajectory.steps] == ["start", "s1", "s2"]
    first = trajectory.steps[0]
    assert (first.text, first.action.text, first.version) == ("a", "a", 7)
    assert [step.reward for step in trajectory.steps] == [0.5] * 3


class Thinking(CharRenderer):
    """Splits off what stands before a bar, as templates with thinking do."""

    def parse(self, ids, /):
        head, _, content = super().parse(ids).content.rpartition("|")
        return Message("assistant", content, thinking=head or None)


def test_thinking_that_the_template_splits_off_is_kept_beside_the_text():
    trajectory, _ = play(lambda key: ["so|a", "end"][key.step], renderer=Thinking())
    assert [(step.thinking, step.text) for step in trajectory.steps] == [("so", "a"), (None, "end")]


def test_a_cut_message_is_passed_on_and_its_appended_end_is_not_trained():
    trajectory, _ = play(lambda key: ["abcdef", "end"][key.step], max_tokens=4)
    (segment,) = trajectory.segments
    assert trajectory.steps[0].action.text == "abcd"
    assert trajectory.steps[0].stop is Stop.MAX_TOKENS
    assert trajectory.steps[0].exec_status is ExecStatus.OK
    assert segment.ids_T[6:12].tolist() == [*ids("abcd"), END, LINE]
    assert segment.mask_T[6:12].tolist() == [True] * 4 + [False] * 2
    assert segment.mask_T.sum() == sum(len(step.ids_T) for step in trajectory.steps)


def test_the_sampled_end_of_turn_is_trained_and_not_doubled():
    trajectory, _ = play(lambda key: ["a", "end"][key.step])
    (segment,) = trajectory.segments
    assert segment.ids_T[6:9].tolist() == [ord("a"), END, LINE]
    assert segment.mask_T[6:9].tolist() == [True, True, False]


def test_every_context_starts_with_the_one_before():
    _, generate = play(lambda key: ["a", "b", "c", "end"][key.step])
    contexts = [request.ids_T.tolist() for request in generate.requests]
    for shorter, longer in itertools.pairwise(contexts):
        assert longer[: len(shorter)] == shorter
    assert [request.key.step for request in generate.requests] == [0, 1, 2, 3]
    assert {(request.key.seed, request.key.task, request.key.rollout) for request in generate.requests} == {
        (11, task_key("t"), 3)
    }


def test_a_parse_failure_is_an_observation_and_the_episode_goes_on():
    trajectory, _ = play(lambda key: ["?", "end"][key.step])
    first = trajectory.steps[0]
    assert (first.exec_status, first.observation_after) == (ExecStatus.INVALID, "no action found")
    assert trajectory.status is Status.DONE


def test_step_limit_is_the_lower_one_and_is_evaluated():
    for limit, steps in ((0, 8), (3, 3), (20, 8)):
        trajectory, _ = play(lambda key: "a", max_steps=limit)
        assert (len(trajectory.steps), trajectory.status) == (steps, Status.STEP_LIMIT)
        assert trajectory.evaluation is not None
        (segment,) = trajectory.segments
        assert segment.mask_T[-1]  # nothing is appended after the last message


def test_a_flood_is_cut_with_a_marker():
    spec = echo_spec(max_observation_chars=20)
    trajectory, _ = play(lambda key: ["flood", "end"][key.step], spec=spec)
    text = trajectory.steps[0].observation_after
    assert text == "x" * 20 + "\n[observation cut: 99980 more characters]"
    assert trajectory.steps[1].observation_before == text
    assert cap_observation("abc", 3) == "abc"


def test_an_observation_that_would_overflow_ends_the_episode_and_is_evaluated():
    trajectory, generate = play(lambda key: ["a", "b", "flood", "end"][key.step], context=60)
    assert trajectory.status is Status.LENGTH
    assert len(trajectory.steps) == 3
    assert trajectory.steps[2].exec_status is ExecStatus.OK
    assert trajectory.evaluation is not None
    assert max(len(request.ids_T) for request in generate.requests) < 60
    (segment,) = trajectory.segments
    assert segment.mask_T[-1]  # the observation that did not fit is not in the tokens
    assert segment.ids_T.tolist()[:6] == [*ids("hello"), OPEN]  # nothing is cut from the left


def test_a_prompt_that_fills_the_context_is_evaluated_without_a_step():
    trajectory, generate = play(lambda key: "a", context=6)
    assert (trajectory.status, trajectory.steps, trajectory.segments) == (Status.LENGTH, (), ())
    assert generate.requests == []
    assert trajectory.evaluation is not None


def test_the_prompt_hook_changes_the_opening_only():
    def inject(prompt: Prompt) -> Prompt:
        return Prompt((Message("system", "skill "), *prompt.messages))

    plain, _ = play(lambda key: ["a", "end"][key.step])
    skilled, _ = play(lambda key: ["a", "end"][key.step], prompt=inject, label="skill")
    assert skilled.segments[0].ids_T.tolist() == ids("skill ") + plain.segments[0].ids_T.tolist()
    assert skilled.prompt.messages[0].content == "skill "
    assert skilled.traj_id != plain.traj_id
    assert plain_prompt(skilled) == plain.prompt == plain_prompt(plain)
    assert PLAIN not in plain.extra


@pytest.mark.parametrize("fault", ["raised", "none", "reset", "evaluate"])
def test_environment_failures_get_out_and_the_session_is_released(fault):
    generate = Scripted(lambda key: "a")
    with pytest.raises(EnvFailure):
        play(None, task=echo_task(fault=fault), generate=generate)
    assert len(generate.released) == (0 if fault == "reset" else 1)


def test_faults_of_the_environments_own_functions_are_environment_failures():
    spec = dataclasses.replace(echo_spec(), parse=lambda message: [][1])
    with pytest.raises(EnvFailure, match=r"EnvSpec.parse raised IndexError"):
        play(lambda key: "a", spec=spec)


class Broken(Scripted):
    """Answers something that no decoder may answer."""

    def __init__(self, answer: Completion):
        super().__init__(lambda key: "")
        self.answer = answer

    async def __call__(self, request):
        return self.answer


@pytest.mark.parametrize(
    ("n", "logprobs", "match"),
    [(0, [], "returned 0 tokens"), (9, [0.0] * 9, "returned 9 tokens"), (2, [0.0], "1 log-probs"),
     (2, [0.0, float("nan")], "finite")],
)  # fmt: skip
def test_a_decoder_that_breaks_its_contract_stops_the_run(n, logprobs, match):
    answer = Completion.__new__(Completion)
    for name, value in {"ids_T": np.zeros(n, np.int32), "logprob_T": np.asarray(logprobs, np.float32),
                        "stop": Stop.STOP, "version": 0}.items():  # fmt: skip
        object.__setattr__(answer, name, value)
    with pytest.raises(RolloutError, match=match):
        play(None, generate=Broken(answer), max_tokens=5)


def test_a_context_of_one_token_is_refused():
    with pytest.raises(ConfigError, match="context=1"):
        EpisodeLimits(context=1)


def test_task_keys_are_stable():
    assert task_key("easy/train/0") == 4050386701
    assert task_key("a") != task_key("b")
