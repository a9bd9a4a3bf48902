"""The sessions of an environment server: bounded in number, ended when idle, safe to ask twice.

In: the requests of docs/environments/http.md as Python values. Out: JSON-ready answers, or `Refused` with a status.
Environments live in the worker processes of an `EnvPool`; one that crashes ends its own session only. Everything here
runs in one event loop; HTTP is not its job (server.py).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from random import Random
from typing import Any

from jaxagent.envs.handle import EnvHandle, Pool
from jaxagent.envs.protocol import EnvSpec, guarded
from jaxagent.envs.server_http import Refused
from jaxagent.envs.wire import encode
from jaxagent.errors import ConfigError, EnvFailure
from jaxagent.types import Message, Prompt, StepResult, Task


class Session:
    """One open episode. `lock` makes a repeated request wait for the first and then get the same answer."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.lock = asyncio.Lock()
        self.used = time.monotonic()
        self.handle: EnvHandle | None = None
        self.opened: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self.verdict: dict[str, Any] | None = None
        self.steps = 0


class Sessions:
    """Owner of the open episodes of one server."""

    def __init__(self, spec: EnvSpec, pool: Pool, *, limit: int = 64, idle_s: float = 600.0):
        if limit < 1 or idle_s <= 0:
            raise ConfigError(f"sessions={limit}, idle_s={idle_s}: both must be positive")
        self._spec, self._pool, self._limit, self._idle_s = spec, pool, limit, idle_s
        self._sessions: dict[str, Session] = {}
        self._keys: dict[str, str] = {}  # a client's key -> the session that it made
        self._tasks: dict[str, dict[str, Task]] = {}
        self._reading = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._sessions)

    def about(self) -> dict[str, Any]:
        """What is hosted."""
        spec = self._spec
        return {
            "name": spec.name,
            "max_steps": spec.max_steps,
            "max_observation_chars": spec.max_observation_chars,
            "expert": spec.expert is not None,
        }

    async def tasks(self, split: str) -> dict[str, Any]:
        """The tasks of a split, without `meta`: it may hold solutions."""
        names = ("task_id", "scenario", "difficulty", "type", "seed")
        known = await self._split(split)
        return {"tasks": [{name: getattr(task, name) for name in names} for task in known.values()]}

    async def create(self, split: str, task_id: str, key: str) -> dict[str, Any]:
        """A new session; the same key gives the session that it made before."""
        task = await self._task(split, task_id)
        name = self._keys.get(key, "") if key else ""
        if name not in self._sessions:
            if len(self._sessions) >= self._limit:
                raise Refused(503, "raised", f"all {self._limit} sessions are taken; release some, or wait")
            name = secrets.token_urlsafe(16)
            self._sessions[name] = Session(task)
            if key:
                self._keys[key] = name
        session = self._sessions[name]
        if session.task is not task:
            taken = session.task.task_id
            raise Refused(409, "raised", f"this key made a session of task {taken!r:.200}; take a new key")
        async with session.lock:
            if name not in self._sessions:  # the request that made it has failed while this one waited
                raise Refused(503, "reset", "the session could not be opened; ask again")
            session.used = time.monotonic()
            if session.handle is None:
                try:
                    handle = session.handle = await self._pool.open(self._spec, task)
                    opening = guarded("prompt", lambda: self._spec.prompt(task, handle.first))
                except EnvFailure as failure:
                    await self._drop(name)
                    raise Refused(500, failure.kind, str(failure)) from failure
                session.opened = {"session": name, "prompt": _prompt(opening), **_step(handle.first)}
            return session.opened

    async def step(self, name: str, index: int, message: str) -> dict[str, Any]:
        """Message number `index`, from 0. The newest index may be sent again and is answered as before."""
        session = self._session(name)
        async with session.lock:
            handle = self._open(name, session)
            if session.steps and index == session.steps - 1:
                return session.last
            if index != session.steps or session.verdict is not None:
                ended = " and has been evaluated" if session.verdict is not None else ""
                raise Refused(
                    409, "raised", f"step {index}: this session expects step {session.steps}{ended}"
                )
            try:
                action = guarded("parse", lambda: self._spec.parse(Message("assistant", message)))
                result = await handle.step(action)
                answer = _step(result)
                if not result.done:
                    replies = guarded("observe", lambda: self._spec.replies(result))
                    answer["messages"] = [{"role": reply.role, "content": reply.content} for reply in replies]
            except EnvFailure as failure:
                await self._drop(name)
                raise Refused(500, failure.kind, str(failure)) from failure
            session.steps, session.last, session.used = session.steps + 1, answer, time.monotonic()
            return answer

    async def evaluate(self, name: str) -> dict[str, Any]:
        """The verdict; the environment is asked once."""
        session = self._session(name)
        async with session.lock:
            handle = self._open(name, session)
            if session.verdict is None:
                try:
                    verdict = encode(await handle.evaluate())
                except EnvFailure as failure:
                    await self._drop(name)
                    raise Refused(500, failure.kind, str(failure)) from failure
                session.verdict = {key: value for key, value in verdict.items() if key != "record"}
            session.used = time.monotonic()
            return session.verdict

    async def release(self, name: str) -> dict[str, Any]:
        """End a session; one that is no more is as good as ended."""
        if name in self._sessions:
            async with self._sessions[name].lock:
                if name in self._sessions:  # it may have failed while this request waited
                    await self._drop(name)
        return {}

    async def demonstrate(self, split: str, task_id: str, seed: int, sloppiness: float) -> dict[str, Any]:
        """What the environment's expert says in a whole episode, played in the pool."""
        task, expert = await self._task(split, task_id), self._spec.expert
        if expert is None:
            raise Refused(404, "raised", f"environment {self._spec.name} has no scripted expert")
        texts: list[str] = []
        try:
            handle = await self._pool.open(self._spec, task)
            try:
                # In a thread: an expert may search for minutes, and every session lives in this loop.
                policy, result = await asyncio.to_thread(expert, task, Random(seed), sloppiness), handle.first
                while not result.done and len(texts) < self._spec.max_steps:
                    texts.append(await asyncio.to_thread(policy.act, result.observation))
                    result = await handle.step(self._spec.parse(Message("assistant", texts[-1])))
            finally:
                await handle.close()
        except EnvFailure as failure:
            raise Refused(500, failure.kind, str(failure)) from failure
        return {"messages": texts}

    async def expire(self) -> None:
        """End the sessions that nobody has used for `idle_s` seconds and that nothing runs in."""
        oldest = time.monotonic() - self._idle_s
        for name, session in list(self._sessions.items()):
            if session.used < oldest and not session.lock.locked():
                await self.release(name)

    async def _split(self, split: str) -> dict[str, Task]:
        async with self._reading:  # read once, whoever asks meanwhile
            if split not in self._tasks:
                try:
                    found = await asyncio.to_thread(self._spec.tasks, split)
                except ConfigError as error:
                    raise Refused(404, "raised", str(error)) from error
                self._tasks[split] = {task.task_id: task for task in found}
            return self._tasks[split]

    async def _task(self, split: str, task_id: str) -> Task:
        tasks = await self._split(split)
        if task_id not in tasks:
            raise Refused(404, "reset", f"split {split!r} has no task {task_id!r:.200}")
        return tasks[task_id]

    def _session(self, name: str) -> Session:
        if name not in self._sessions:
            raise Refused(
                404, "died", f"there is no session {name!r:.80}; it may have ended, failed or expired"
            )
        return self._sessions[name]

    def _open(self, name: str, session: Session) -> EnvHandle:
        """The session's environment; it may have gone while a request waited for its turn."""
        if session.handle is None or name not in self._sessions:
            raise Refused(404, "died", f"session {name!r} has ended")
        return session.handle

    async def _drop(self, name: str) -> None:
        session = self._sessions.pop(name)
        self._keys = {key: owner for key, owner in self._keys.items() if owner != name}
        if session.handle is not None:
            await session.handle.close()
            session.handle = None


def _step(result: StepResult) -> dict[str, Any]:
    fields = encode(result)
    return {key: value for key, value in fields.items() if key not in ("record", "messages")}


def _prompt(opening: Prompt) -> Mapping[str, Any]:
    messages = [{"role": message.role, "content": message.content} for message in opening.messages]
    return {"messages": messages, "tools": [dict(tool) for tool in opening.tools]}
