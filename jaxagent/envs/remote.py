"""An environment spoken to over HTTP: create, step, evaluate, release. docs/environments/http.md has the JSON.

The trainer's process asks the server once what it hosts and which tasks there are; each episode's client lives in a
worker process. What a message means is the server's business: it gets the assistant's text and answers with messages,
so prompt, parser and checker stay on the server's side, and nothing of a task but its name travels.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Any
from urllib.parse import quote

from pydantic import Field

from jaxagent.envs.entry import Entry
from jaxagent.envs.http_client import HttpClient, check_url
from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.wire import decode_evaluation, decode_step
from jaxagent.errors import ConfigError, EnvFailure
from jaxagent.records import Record
from jaxagent.types import Action, Evaluation, Message, Prompt, StepResult, Task


class RemoteOptions(Record):
    """url: of the server. step_s: seconds an attempt may take; retries: further attempts (the server must then honour
    `index` and `key`, see the page). token_variable: name of the environment variable that holds the bearer token.
    """

    url: str
    step_s: float = Field(default=30.0, gt=0)
    retries: int = Field(default=2, ge=0, le=10)
    token_variable: str = ""

    @property
    def client(self) -> HttpClient:
        token = os.environ.get(self.token_variable, "") if self.token_variable else ""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return HttpClient(self.url.rstrip("/"), self.step_s, self.retries, headers)


class RemoteEnv:
    """One session on the server."""

    def __init__(self, options: RemoteOptions):
        self._client, self._session, self._index = options.client, "", 0

    def reset(self, task: Task) -> StepResult:
        request = {"split": task.split, "task_id": task.task_id, "key": uuid.uuid4().hex}
        fields = self._client.json("POST", "/v1/sessions", request)
        session = fields.pop("session", None)
        if not isinstance(session, str) or not session:
            raise EnvFailure("garbage", "POST /v1/sessions: the answer has no session name")
        self._session = f"/v1/sessions/{quote(session, safe='')}"
        opening = fields.pop("prompt", None)
        first = decode_step(_step_fields(fields))
        opening = {"messages": _chat(opening), "tools": list(_part(opening, "tools"))}
        return StepResult(first.observation, anchor=first.anchor, info={**first.info, "prompt": opening})

    def step(self, action: Action) -> StepResult:
        body = {"index": self._index, "message": action.text or action.error}
        fields = self._client.json("POST", f"{self._session}/step", body)
        self._index += 1
        return decode_step(_step_fields(fields))

    def evaluate(self) -> Evaluation:
        fields = self._client.json("POST", f"{self._session}/evaluate", {})
        return decode_evaluation({"failures": [], "info": {}, **fields, "record": "evaluation"})

    def close(self) -> None:
        if self._session:
            self._client.json("DELETE", self._session, repeatable=False)
            self._session = ""


class RemoteExpert:
    """Says again what the server's expert said when it played the task there."""

    def __init__(self, options: RemoteOptions, task: Task, rng: Random, sloppiness: float):
        body = {
            "split": task.split,
            "task_id": task.task_id,
            "seed": rng.randrange(2**31),
            "sloppiness": sloppiness,
        }
        texts = _ask(options, "POST", "/v1/demonstrations", body).get("messages")
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ConfigError(
                f"{options.url}/v1/demonstrations: expected `messages`, a list of texts; got {texts!r:.200}"
            )
        self._texts = iter(texts)

    def act(self, observation: str) -> str:
        return next(self._texts, "")


def _part(value: Any, name: str) -> list[Any]:
    """A list of objects in the prompt of an answer."""
    items = value.get(name, []) if isinstance(value, Mapping) else None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise EnvFailure("garbage", f"POST /v1/sessions: prompt.{name} is no list of objects")
    return items


def _chat(value: Any) -> list[list[str]]:
    pairs = [[message.get("role"), message.get("content")] for message in _part(value, "messages")]
    for role, content in pairs:
        if role not in ("system", "user", "assistant", "tool") or not isinstance(content, str):
            raise EnvFailure(
                "garbage", f"POST /v1/sessions: a prompt message of role {role!r}, or not of text"
            )
    if not pairs:
        raise EnvFailure("garbage", "POST /v1/sessions: prompt.messages is empty")
    return pairs


def _step_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a StepResult, with the defaults that the page promises to servers."""
    messages = fields.get("messages", [])
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise EnvFailure("garbage", "`messages` is no list of objects")
    defaults = {
        "observation": "",
        "exec_status": "ok",
        "done": False,
        "reward": 0.0,
        "anchor": "",
        "info": {},
    }
    pairs = [[message.get("role"), message.get("content")] for message in messages]
    return {**defaults, **fields, "record": "step", "messages": pairs}


def prompt(task: Task, first: StepResult) -> Prompt:
    """What the server sent when the session was made."""
    opening = first.info["prompt"]
    messages = tuple(Message(role, content) for role, content in opening["messages"])
    return Prompt(messages, tuple(opening["tools"]))


def parse(message: Message) -> Action:
    return Action(text=message.content)


def _ask(options: RemoteOptions, method: str, path: str, body: Any = None) -> dict[str, Any]:
    """A question of the trainer's process, before devices start: a failure is the configuration's."""
    try:
        return options.client.json(method, path, body)
    except EnvFailure as failure:
        raise ConfigError(
            f"env.options.url={options.url!r}: {failure}; start the server, for example: python -m "
            "jaxagent.envs.server NAME --port 8900 (docs/environments/http.md)"
        ) from failure


def remote_tasks(options: RemoteOptions, name: str, split: str) -> Sequence[Task]:
    """The server's tasks of a split, in its order."""
    listed = _ask(options, "GET", f"/v1/tasks?split={quote(split, safe='')}").get("tasks")
    if not isinstance(listed, list):
        raise ConfigError(f"env.options.url={options.url!r}: GET /v1/tasks answered without a list `tasks`")
    return [_task(item, name, split, options.url) for item in listed]


def _task(item: Any, name: str, split: str, url: str) -> Task:
    try:
        return Task(
            task_id=str(item["task_id"]),
            env=name,
            split=split,
            scenario=str(item.get("scenario", "")),
            difficulty=int(item.get("difficulty", 1)),
            type=str(item.get("type", "")),
            seed=int(item.get("seed", 0)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise ConfigError(
            f"env.options.url={url!r}: a task that cannot be read ({exc!r}): {item!r:.200}"
        ) from exc


def _positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def remote_spec(options: RemoteOptions) -> EnvSpec:
    """The environment that the server hosts. Raises ConfigError if it is out of reach or describes itself wrongly."""
    check_url(options.url, "env.options.url")
    if options.token_variable and not os.environ.get(options.token_variable):
        raise ConfigError(
            f"env.options.token_variable: ${options.token_variable} is not set; export the token"
        )
    about = _ask(options, "GET", "/v1/environment")
    name, max_steps = about.get("name"), about.get("max_steps", 0)
    shown = about.get("max_observation_chars", 16_000)
    if not isinstance(name, str) or not name or not _positive(max_steps) or not _positive(shown):
        raise ConfigError(
            f"env.options.url={options.url!r}: GET /v1/environment needs `name`, and `max_steps` and "
            f"`max_observation_chars` as positive integers; it answered {about!r:.300}"
        )
    waits = options.step_s * (1 + options.retries) + 2.0 * 2**options.retries
    return EnvSpec(
        name=name,
        make=partial(RemoteEnv, options),
        tasks=partial(remote_tasks, options, name),
        prompt=prompt,
        parse=parse,
        max_steps=max_steps,
        expert=partial(RemoteExpert, options) if about.get("expert") is True else None,
        max_observation_chars=shown,
        worker={"step_s": waits},
    )


ENTRY = Entry(RemoteOptions, remote_spec)
