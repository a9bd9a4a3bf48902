"""One episode: the policy writes a message, the environment answers, until one of them ends it.

In: a task, a `Generate`, a pool, a renderer. Out: a `Trajectory`, evaluated, tokens exactly as sampled.
Raises EnvFailure when the environment fails (rollout/plans.py retries and drops). Rewards and credit are not
its job.
"""

from __future__ import annotations

import itertools
import sys
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar, runtime_checkable

from jaxagent.envs.handle import EnvHandle, Pool
from jaxagent.envs.protocol import EnvSpec, guarded
from jaxagent.envs.replay import cap_observation
from jaxagent.errors import ConfigError
from jaxagent.rollout.asking import Ask, asker, with_stops
from jaxagent.rollout.branch import branch_name, extend_to, kept_steps, prefix_of
from jaxagent.rollout.context import History, check_prefix
from jaxagent.rollout.explore import FORCED, Forced, forced_tools, never
from jaxagent.stage import Branch
from jaxagent.types import (
    Action,
    Completion,
    ExecStatus,
    Generate,
    Message,
    Prompt,
    SampleKey,
    Sampling,
    Status,
    Step,
    StepResult,
    Stop,
    Task,
    Trajectory,
)

PLAIN = "plain_prompt"  # key of `Trajectory.extra`: the opening before a plan's `prompt` rewrote it
_sessions = itertools.count()
T = TypeVar("T")


@runtime_checkable
class Renderer(Protocol):
    """What an episode needs of chat/render.py. See docs/architecture.md for the meaning of each method."""

    stop_ids: tuple[int, ...]

    def open(self, prompt: Prompt, /) -> Sequence[int]: ...

    def reply(self, *messages: Message) -> Sequence[int]: ...

    def close(self, ids: Sequence[int], /) -> Sequence[int]: ...

    def sampled(self, message: str, /) -> Sequence[int]: ...

    def parse(self, ids: Sequence[int], /) -> Message: ...


@dataclass(frozen=True)
class EpisodeLimits:
    """context: tokens of prompt, messages and observations together.

    max_steps, max_observation_chars: 0 takes the environment's own limit; the lower of the two holds.
    """

    context: int
    max_steps: int = 0
    max_observation_chars: int = 0

    def __post_init__(self) -> None:
        if self.context < 2:
            raise ConfigError(f"rollout.context={self.context}; a prompt and one token need at least 2")


def task_key(task_id: str) -> int:
    """Stable 32-bit hash of a task id, the `task` part of every SampleKey."""
    return zlib.crc32(task_id.encode())


async def run_episode(
    spec: EnvSpec,
    task: Task,
    *,
    rollout: int,
    generate: Generate,
    pool: Pool,
    renderer: Renderer,
    sampling: Sampling,
    limits: EpisodeLimits,
    key_seed: int,
    prompt: Callable[[Prompt], Prompt] | None = None,
    label: str = "",
    branch: Branch | None = None,
    before: Callable[[Prompt], Sequence[Action]] | None = None,
) -> Trajectory:
    """Run one episode of `task`. `prompt` rewrites the opening (skill injection). `branch` opens it in the middle.

    before: the environment's opening -> actions played unseen before the first message.
    The random stream is named by (key_seed, task or branch, rollout, step) only: a retry samples the same again.
    """
    name = branch_name(branch) if branch else task.task_id
    traj_id = f"{name}:{rollout}" + (f":{label}" if label else "")
    session = f"{traj_id}@{next(_sessions)}"
    key = SampleKey(key_seed, task_key(name), rollout, 0)
    handle = await pool.open(spec, task, prefix_of(branch, characters(spec, limits)) if branch else None)
    try:
        episode = _Episode(spec, handle, renderer, limits, handle.first)
        if branch is None:
            opening = await _open(episode, task, prompt, before)
        else:
            opening = _open_branch(episode, branch)
        episode.force = forced_tools(opening.tools, sampling.tool_epsilon, renderer=renderer, key=key)
        ask = asker(generate, session, key, with_stops(sampling, renderer.stop_ids))
        status = await _play(episode, ask)
        evaluation = await _timed(episode, handle.evaluate())
        return Trajectory(
            traj_id=traj_id,
            task=task,
            rollout=rollout,
            status=status,
            prompt=opening,
            steps=tuple(episode.steps),
            segments=episode.history.segments(),
            evaluation=evaluation,
            extra={
                "label": label,
                "env_s": episode.env_s,
                "generate_s": episode.generate_s,
                **({"branch": name} if branch else {}),
                **({PLAIN: episode.plain} if episode.plain is not None else {}),
                **({FORCED: episode.forced} if episode.forced else {}),
            },
            before=episode.before,
        )
    finally:
        await handle.close()
        await generate.release(session)


@dataclass
class _Episode:
    """What an episode is played with, and what has happened so far. start: what the first message answers."""

    spec: EnvSpec
    handle: EnvHandle
    renderer: Renderer
    limits: EpisodeLimits
    start: StepResult
    before: tuple[tuple[Action, StepResult], ...] = ()
    history: History = field(default_factory=History)
    steps: list[Step] = field(default_factory=list)
    first: int = 0  # number of the first message, counted from the start of the task
    plain: Prompt | None = None  # the opening before it was rewritten
    force: Forced = never
    forced: list[int] = field(default_factory=list)  # steps whose messages began with a tool that was drawn
    env_s: float = 0.0
    generate_s: float = 0.0


async def _open(
    episode: _Episode,
    task: Task,
    rewrite: Callable[[Prompt], Prompt] | None,
    before: Callable[[Prompt], Sequence[Action]] | None,
) -> Prompt:
    opening = guarded("prompt", lambda: episode.spec.prompt(task, episode.handle.first))
    for action in () if before is None else before(opening):
        result = await _timed(episode, episode.handle.step(action))
        episode.before += ((action, result),)
        episode.start = replace(episode.start, anchor=result.anchor, done=result.done)
    if rewrite is not None:
        episode.plain, opening = opening, rewrite(opening)
    episode.history.extend(episode.renderer.open(opening))
    return opening


def _open_branch(episode: _Episode, branch: Branch) -> Prompt:
    extend_to(branch, episode.history)
    episode.steps.extend(kept_steps(branch))
    episode.first = branch.step
    episode.before = branch.trajectory.before
    if branch.step == 0:  # the last answer is one that the policy has not seen
        first = branch.trajectory.steps[0]
        episode.start = StepResult(first.observation_before, anchor=first.anchor)
    episode.plain = branch.trajectory.extra.get(PLAIN)
    return branch.trajectory.prompt


async def _play(episode: _Episode, ask: Ask) -> Status:
    """Alternate messages and observations until the episode ends; returns how."""
    spec, limits, history = episode.spec, episode.limits, episode.history
    max_steps = min(spec.max_steps, limits.max_steps or spec.max_steps)
    before = episode.start
    if before.done:
        return Status.DONE
    stored_T = history.ids_T
    for k in range(episode.first, max_steps):
        begun = _begun(episode, k)
        room = limits.context - len(history)
        if room < 1:
            return Status.LENGTH
        context_T = history.ids_T
        check_prefix(stored_T, context_T)
        start = time.monotonic()
        completion = await ask(context_T, k, room)
        episode.generate_s += time.monotonic() - start
        history.sampled(completion, len(episode.steps))
        stored_T = history.ids_T
        cut_by_context = completion.stop is not Stop.STOP and len(history) >= limits.context
        said = [*begun, *completion.ids_T.tolist()]
        result = await _act(episode, completion, said, before, execute=not cut_by_context)
        if result is None:
            return Status.LENGTH
        if result.done:
            return Status.DONE
        if k + 1 < max_steps and not _append_reply(episode, completion, result):
            return Status.LENGTH
        before = result
    return Status.STEP_LIMIT


def _begun(episode: _Episode, k: int) -> list[int]:
    """What message k is made to begin with; it joins the history as nobody's tokens. Nothing, if there is no room."""
    ids = episode.force(k)
    if not ids or len(episode.history) + len(ids) >= episode.limits.context:
        return []
    episode.history.extend(ids)
    episode.forced.append(len(episode.steps))
    return ids


async def _act(
    episode: _Episode, completion: Completion, said: Sequence[int], before: StepResult, *, execute: bool
) -> StepResult | None:
    """Parse a message, let the environment take it, record the step. None: cut by the context, not run.

    said: the whole message; of the completion alone unless it was made to begin in some way.
    """
    message = episode.renderer.parse(said)
    action = guarded("parse", lambda: episode.spec.parse(message))
    result = None
    if execute:
        result = await _timed(episode, episode.handle.step(action))
        result = capped(result, characters(episode.spec, episode.limits))
    episode.steps.append(
        Step(
            k=len(episode.steps),
            observation_before=before.observation,
            text=message.content,
            ids_T=completion.ids_T,
            logprob_T=completion.logprob_T,
            version=completion.version,
            stop=completion.stop,
            action=action,
            exec_status=result.exec_status if result else ExecStatus.NONE,
            observation_after=result.observation if result else "",
            reward=result.reward if result else 0.0,
            anchor=before.anchor,
            thinking=message.thinking,
        )
    )
    return result


def characters(spec: EnvSpec, limits: EpisodeLimits) -> int:
    """The lower of the environment's and the run's observation limits; 0 is no limit."""
    both = (spec.max_observation_chars, limits.max_observation_chars)
    return min((limit for limit in both if limit), default=sys.maxsize)


def capped(result: StepResult, limit: int) -> StepResult:
    """The answer with every text the policy sees cut to the limit."""
    messages = tuple(replace(part, content=cap_observation(part.content, limit)) for part in result.messages)
    return replace(result, observation=cap_observation(result.observation, limit), messages=messages)


def _append_reply(episode: _Episode, completion: Completion, result: StepResult) -> bool:
    """Append what the template and the environment say after a message; False if there is no room."""
    renderer, history = episode.renderer, episode.history
    messages = guarded("observe", lambda: episode.spec.replies(result))
    tail = [*renderer.close(completion.ids_T.tolist()), *renderer.reply(*messages)]
    if len(history) + len(tail) >= episode.limits.context:
        return False
    history.extend(tail)
    return True


async def _timed(episode: _Episode, call: Awaitable[T]) -> T:
    start = time.monotonic()
    try:
        return await call
    finally:
        episode.env_s += time.monotonic() - start
