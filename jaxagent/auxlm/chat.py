"""Any OpenAI-compatible endpoint as an agent that plays episodes. In: a conversation. Out: the next message.

A request is tried again after 408, 409, 425, 429, 5xx, a broken connection, a time-out or garbage, with the waits that
the server asks for. What is left is the episode's: EnvFailure, so that it is run again, then dropped and counted. A
wrong key, model or address stops the evaluation (ConfigError), and so does a server that no longer answers at all
(RolloutError); a conversation that the model cannot hold ends as `ContextFull`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxagent.auxlm.chat_wire import ChatAnswer, Conversation, Wire, read_answer, wire_tools
from jaxagent.auxlm.client import AuxError
from jaxagent.auxlm.endpoint import EndpointBackend
from jaxagent.errors import ConfigError, EnvFailure, RolloutError
from jaxagent.rollout.episode import task_key
from jaxagent.rollout.talk import ContextFull, Player, Said
from jaxagent.types import Message, Prompt, Sampling, StepResult, Task

MISCONFIGURED = (401, 403, 404)
FULL = re.compile(
    r"context.{0,12}(length|window|size)|maximum.{0,12}context|exceed.{0,8}context|prompt is too long", re.I
)


@dataclass(frozen=True)
class ChatRules:
    """retries, backoff_s: of one request; the wait doubles. patience: failed requests in a row that end it all.

    extra: fields added to every request's body; null takes a field away.
    """

    retries: int = 4
    backoff_s: float = 1.0
    patience: int = 64
    extra: Mapping[str, Any] = field(default_factory=dict)


class ChatEndpoint:
    """Asks one endpoint, on behalf of many episodes. The back end's threads are the caller's to close."""

    def __init__(self, backend: EndpointBackend, rules: ChatRules | None = None):
        self.backend, self.rules = backend, rules or ChatRules()
        self._failed = 0  # requests in a row that were given up

    async def ask(self, body: Mapping[str, Any]) -> ChatAnswer:
        """One message. Raises EnvFailure("endpoint"), ContextFull, ConfigError or RolloutError."""
        whole = {**body, **self.rules.extra}
        sent = {name: value for name, value in whole.items() if value is not None}
        for attempt in range(self.rules.retries + 1):
            try:
                answer = read_answer(await self.backend.send(sent))
            except AuxError as error:
                if not error.retry or attempt == self.rules.retries:
                    raise self._given_up(error) from error
                longest = self.backend.config.timeout_s
                await asyncio.sleep(min(max(error.after_s, self.rules.backoff_s * 2**attempt), longest))
            else:
                self._failed = 0
                return answer
        raise AssertionError("the last attempt returns or raises")

    def _given_up(self, error: AuxError) -> Exception:
        if error.status in MISCONFIGURED:
            return ConfigError(f"the endpoint refuses: {error}. Check base_url, model and the key")
        if 400 <= error.status < 500 and FULL.search(str(error)):
            return ContextFull(str(error))
        self._failed += 1
        if self._failed >= self.rules.patience:
            return RolloutError(
                f"the endpoint has not answered {self._failed} requests in a row; the last: {error}. "
                "What is finished is kept: start the same command again when it answers"
            )
        return EnvFailure("endpoint", str(error))


class ChatAgent:
    """Plays episodes by asking an endpoint; the environment's tools go with every request."""

    def __init__(self, endpoint: ChatEndpoint, sampling: Sampling, *, seed: int = 0):
        self._endpoint, self._seed = endpoint, seed
        self._body: Wire = {
            "model": endpoint.backend.config.model,
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
        }
        if sampling.top_p < 1:
            self._body["top_p"] = sampling.top_p

    def player(self, task: Task, prompt: Prompt, rollout: int) -> Player:
        body = dict(self._body)
        if prompt.tools:
            body["tools"] = wire_tools(prompt.tools)
        if (
            body["temperature"] > 0
        ):  # rollouts of a task must differ where a proxy answers equal requests from a cache
            body["seed"] = (self._seed + task_key(task.task_id) + rollout) % 2**31
        return _ChatPlayer(self._endpoint, body)


class _ChatPlayer:
    def __init__(self, endpoint: ChatEndpoint, body: Wire):
        self._endpoint, self._body, self._conversation = endpoint, body, Conversation()

    async def say(self, new: Sequence[Message], result: StepResult) -> Said:
        self._conversation.hear(new)
        answer = await self._endpoint.ask({**self._body, "messages": self._conversation.messages})
        self._conversation.say(answer)
        return Said(answer.message, answer.stop, answer.context, answer.sampled)
