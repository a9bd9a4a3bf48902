"""Demonstrations: episodes played by an environment's scripted expert, as trajectories of the same form as rollouts.

In: a spec with an `expert`, tasks. Out: Trajectory records whose assistant tokens carry the action mask, with
behaviour log-prob 0 (nobody sampled them). Environments run in this process, one after the other: the expert is
our own code. Not its job: choosing what to train on (batch/targets.py).
"""

from __future__ import annotations

import numpy as np

from jaxagent.chat.render import Renderer
from jaxagent.envs.protocol import EnvSpec
from jaxagent.errors import ConfigError
from jaxagent.types import Message, Segment, Status, Step, Stop, Task, Trajectory


def demonstrate(
    spec: EnvSpec, task: Task, renderer: Renderer, *, rng: np.random.Generator, sloppiness: float = 0.0
) -> Trajectory:
    """Play one episode by script. Raises ConfigError for an environment that has no expert."""
    if spec.expert is None:
        raise ConfigError(f"environment {spec.name!r} has no scripted expert; give demonstrations as a file instead")
    policy = spec.expert(task, rng, sloppiness)
    env = spec.make()
    try:
        result = env.reset(task)
        prompt = spec.prompt(task, result)
        tokens = _Tokens(renderer.open(prompt))
        steps: list[Step] = []
        while not result.done and len(steps) < spec.max_steps:
            text = policy.act(result.observation)
            message_ids = renderer.sampled(text)
            tokens.add(message_ids, step=len(steps))
            action = spec.parse(Message("assistant", text))
            before, result = result, env.step(action)
            steps.append(
                Step(
                    k=len(steps),
                    observation_before=before.observation,
                    text=text,
                    ids_T=np.asarray(message_ids, np.int32),
                    logprob_T=np.zeros(len(message_ids), np.float32),
                    version=0,
                    stop=Stop.STOP,
                    action=action,
                    exec_status=result.exec_status,
                    observation_after=result.observation,
                    reward=result.reward,
                    anchor=before.anchor,
                )
            )
            if not result.done:
                tokens.add(renderer.reply(spec.observe(result.observation)), step=-1)
        return Trajectory(
            traj_id=f"{task.task_id}/demonstration",
            task=task,
            rollout=0,
            status=Status.DONE if result.done else Status.STEP_LIMIT,
            prompt=prompt,
            steps=tuple(steps),
            segments=(tokens.segment(),),
            evaluation=env.evaluate(),
        )
    finally:
        env.close()


class _Tokens:
    """A growing segment."""

    def __init__(self, prompt_ids: list[int]):
        self.ids: list[int] = list(prompt_ids)
        self.step: list[int] = [-1] * len(self.ids)

    def add(self, ids: list[int], *, step: int) -> None:
        self.ids += ids
        self.step += [step] * len(ids)

    def segment(self) -> Segment:
        step_T = np.asarray(self.step, np.int32)
        return Segment(
            ids_T=np.asarray(self.ids, np.int32),
            mask_T=step_T >= 0,
            step_T=step_T,
            logprobs={"behaviour": np.zeros(len(step_T), np.float32)},
        )
