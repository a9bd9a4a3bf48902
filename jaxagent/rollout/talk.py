"""One episode at the level of messages: for agents that have no tokens of ours, an endpoint or a script.

In: a plan, an `Agent`, a pool. Out: a `Trajectory` as `run_episode` gives it, without token ids: `extra["usage"]` holds
the token counts that the agent reported. Limits, statuses, cut observations and failures are those of
rollout/episode.py. Not its job: retries and drops (rollout/plans.py), transport (auxlm/chat.py).
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from jaxagent.envs.handle import EnvHandle, Pool
from jaxagent.envs.protocol import EnvSpec, guarded
from jaxagent.errors import ConfigError, JaxagentError
from jaxagent.plan import Plan
from jaxagent.rollout.limits import EpisodeLimits, capped, characters, steps_of
from jaxagent.types import Message, Prompt, Status, Step, StepResult, Stop, Task, Trajectory

T = TypeVar("T")


class ContextFull(JaxagentError):
    """The agent's model cannot take the conversation any more: the episode ends as `Status.LENGTH`."""


@dataclass(frozen=True)
class Said:
    """An agent's message. context: tokens that it read for it; sampled: tokens of the message; None is unknown."""

    message: Message
    stop: Stop = Stop.STOP
    context: int | None = None
    sampled: int | None = None


@runtime_checkable
class Player(Protocol):
    """Plays one episode. Raises ContextFull, or EnvFailure when it cannot answer: the episode is then run again."""

    async def say(self, new: Sequence[Message], result: StepResult) -> Said:
        """The next message. `new`: what was said since the last one, first the opening; `result`: the same as the
        environment gave it, not cut."""
        ...


@runtime_checkable
class Agent(Protocol):
    """Who plays the episodes of an evaluation."""

    def player(self, task: Task, prompt: Prompt, rollout: int) -> Player: ...


async def run_talk(
    plan: Plan, rollout: int, *, spec: EnvSpec, agent: Agent, pool: Pool, limits: EpisodeLimits
) -> Trajectory:
    """Play episode number `rollout` of a plan. `limits.context` does not apply: the agent's model has its own."""
    if plan.branch is not None or plan.before is not None:
        raise ConfigError(
            f"a plan of task {plan.task.task_id!r} goes on from a branch or from actions before the first message; "
            "an agent that speaks in messages plays from the start, drop `branch` and `before`"
        )
    task, label = plan.task, plan.label
    handle = await pool.open(spec, task)
    try:
        opening = guarded("prompt", lambda: spec.prompt(task, handle.first))
        opening = opening if plan.prompt is None else plan.prompt(opening)
        talk = _Talk(spec, handle, limits)
        status = await _play(talk, opening, guarded("expert", lambda: agent.player(task, opening, rollout)))
        evaluation = await talk.timed("env_s", handle.evaluate())
        return Trajectory(
            traj_id=f"{task.task_id}:{rollout}" + (f":{label}" if label else ""),
            task=task,
            rollout=rollout,
            status=status,
            prompt=opening,
            steps=tuple(talk.steps),
            segments=(),
            evaluation=evaluation,
            extra={"label": label, **talk.seconds, "usage": talk.usage()},
        )
    finally:
        await handle.close()


@dataclass
class _Talk:
    """What an episode is played with, and what has happened so far."""

    spec: EnvSpec
    handle: EnvHandle
    limits: EpisodeLimits
    steps: list[Step] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"env_s": 0.0, "generate_s": 0.0})

    async def timed(self, name: str, call: Awaitable[T]) -> T:
        start = time.monotonic()
        try:
            return await call
        finally:
            self.seconds[name] += time.monotonic() - start

    def usage(self) -> dict[str, list[int]] | None:
        """Token counts by message, or None if the agent did not say them of every one."""
        counts = [(said.context, said.sampled) for said in self.said]
        known = [
            (context, sampled) for context, sampled in counts if context is not None and sampled is not None
        ]
        if not counts or len(known) < len(counts):
            return None
        return {"context": [pair[0] for pair in known], "sampled": [pair[1] for pair in known]}


async def _play(talk: _Talk, opening: Prompt, player: Player) -> Status:
    """Alternate messages and answers until the episode ends; returns how."""
    spec, limits = talk.spec, talk.limits
    most = characters(spec, limits)
    new, result, before = opening.messages, talk.handle.first, talk.handle.first
    for k in range(steps_of(spec, limits)):
        try:
            said = await talk.timed("generate_s", player.say(new, result))
        except ContextFull:
            return Status.LENGTH
        action = guarded("parse", lambda message=said.message: spec.parse(message))
        result = await talk.timed("env_s", talk.handle.step(action))
        shown = capped(result, most)
        talk.said.append(said)
        talk.steps.append(
            Step(
                k=k,
                observation_before=before.observation,
                text=written(said.message),
                ids_T=np.zeros(0, np.int32),
                logprob_T=np.zeros(0, np.float32),
                version=0,
                stop=said.stop,
                action=action,
                exec_status=shown.exec_status,
                observation_after=shown.observation,
                reward=shown.reward,
                anchor=before.anchor,
            )
        )
        if result.done:
            return Status.DONE
        new, before = guarded("observe", lambda shown=shown: spec.replies(shown)), shown
    return Status.STEP_LIMIT


def written(message: Message) -> str:
    """A message as text; calls that came beside the content are written behind it, as models write them."""
    calls = (call_text(call.name, json.dumps(dict(call.arguments))) for call in message.tool_calls)
    return "\n".join(part for part in (message.content, *calls) if part)


def call_text(name: str, arguments: str) -> str:
    """A tool call as chat/tools.py reads it; `arguments` is JSON, or what was meant to be."""
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'
