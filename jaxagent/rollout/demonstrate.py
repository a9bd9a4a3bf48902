"""Demonstrations: episodes played by an environment's scripted expert, as trajectories of the same form as rollouts.

`play` runs the environment, in this process: the expert is our own code. `tokens` renders what was played, with
the action mask on the assistant's tokens and behaviour log-prob 0 (nobody sampled them). The two are apart because
a tokenizer may be trained on what was played. Not its job: choosing what to learn from (batch/targets.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from jaxagent.chat.render import Renderer
from jaxagent.data.slips import slip
from jaxagent.envs.protocol import EnvSpec, ScriptedPolicy
from jaxagent.errors import ConfigError
from jaxagent.types import (
    Action,
    Evaluation,
    Message,
    Prompt,
    Segment,
    Status,
    Step,
    StepResult,
    Stop,
    Task,
    Trajectory,
)


@dataclass(frozen=True)
class Played:
    """One scripted episode before tokenisation: texts[k] answered results[k] and led to results[k + 1]."""

    task: Task
    prompt: Prompt
    texts: tuple[str, ...]
    actions: tuple[Action, ...]
    results: tuple[StepResult, ...]
    evaluation: Evaluation
    before: tuple[tuple[Action, StepResult], ...] = ()

    def messages(self, spec: EnvSpec) -> list[Message]:
        """The whole conversation. The last observation is left out: nobody reads it."""
        messages = list(self.prompt.messages)
        for k, text in enumerate(self.texts):
            if k:
                messages += spec.replies(self.results[k])
            messages.append(Message("assistant", text))
        return messages


def play(spec: EnvSpec, task: Task, *, rng: Random, sloppiness: float = 0.0, slips: float = 0.0) -> Played:
    """Play one episode by script. Raises ConfigError for an environment that has no expert.

    slips: the chance that a message is first tried with one word wrong (data/slips.py). The environment answers with
           an error, and the right message follows. Where it takes the wrong one, the episode is played again without.
    """
    if spec.expert is None:
        raise ConfigError(
            f"environment {spec.name!r} has no scripted expert; use the sft recipe's `file` instead"
        )
    start = rng.getstate()
    policy = spec.expert(task, rng, sloppiness)
    env = (spec.rehearse or spec.make)()
    try:
        results = [env.reset(task)]
        prompt = spec.prompt(task, results[0])
        texts: list[str] = []
        actions: list[Action] = []

        def say(text: str) -> StepResult:
            texts.append(text)
            actions.append(spec.parse(Message("assistant", text)))
            results.append(env.step(actions[-1]))
            return results[-1]

        while not results[-1].done and len(texts) < spec.max_steps:
            right = policy.act(results[-1].observation)
            wrong = slip(right, rng) if slips and rng.random() < slips else right
            if wrong != right and len(texts) + 1 < spec.max_steps:
                taken = say(wrong)
                if taken.done or not taken.exec_status.failed:
                    rng.setstate(start)
                    return play(spec, task, rng=rng, sloppiness=sloppiness)
            say(right)
        return Played(task, prompt, tuple(texts), tuple(actions), tuple(results), env.evaluate())
    finally:
        env.close()


def perform(
    spec: EnvSpec,
    task: Task,
    policy: ScriptedPolicy,
    *,
    prompt: Callable[[Prompt], Prompt],
    before: Callable[[Prompt], Sequence[Action]],
) -> Played:
    """Play one episode by a policy of the caller's, with an opening and a start as a `Plan` gives them."""
    env = (spec.rehearse or spec.make)()
    try:
        results = [env.reset(task)]
        opening = spec.prompt(task, results[0])
        prelude = tuple((action, env.step(action)) for action in before(opening))
        texts: list[str] = []
        actions: list[Action] = []
        while not results[-1].done and len(texts) < spec.max_steps:
            texts.append(policy.act(results[-1].observation))
            actions.append(spec.parse(Message("assistant", texts[-1])))
            results.append(env.step(actions[-1]))
        verdict = env.evaluate()
        return Played(task, prompt(opening), tuple(texts), tuple(actions), tuple(results), verdict, prelude)
    finally:
        env.close()


def tokens(played: Played, spec: EnvSpec, renderer: Renderer, number: int = 0) -> Trajectory:
    """The trajectory of a played episode, in one segment. `number` tells several of one task apart."""
    ids = list(renderer.open(played.prompt))
    owner = [-1] * len(ids)
    steps: list[Step] = []
    for k, text in enumerate(played.texts):
        if k:
            reply = renderer.reply(*spec.replies(played.results[k]))
            ids, owner = ids + reply, owner + [-1] * len(reply)
        sampled = renderer.sampled(text)
        ids, owner = ids + sampled, owner + [k] * len(sampled)
        steps.append(_step(played, k, sampled))
    step_T = np.asarray(owner, np.int32)
    behaviour_T = np.zeros(len(ids), np.float32)
    return Trajectory(
        traj_id=f"{played.task.task_id}/demonstration-{number}",
        task=played.task,
        rollout=number,
        status=Status.DONE if played.results[-1].done else Status.STEP_LIMIT,
        prompt=played.prompt,
        steps=tuple(steps),
        segments=(Segment(np.asarray(ids, np.int32), step_T >= 0, step_T, {"behaviour": behaviour_T}),),
        evaluation=played.evaluation,
        before=played.before,
    )


def _step(played: Played, k: int, sampled: list[int]) -> Step:
    before, after = played.results[k], played.results[k + 1]
    return Step(
        k=k,
        observation_before=before.observation,
        text=played.texts[k],
        ids_T=np.asarray(sampled, np.int32),
        logprob_T=np.zeros(len(sampled), np.float32),
        version=0,
        stop=Stop.STOP,
        action=played.actions[k],
        exec_status=after.exec_status,
        observation_after=after.observation,
        reward=after.reward,
        anchor=before.anchor,
    )
