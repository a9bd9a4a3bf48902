"""Which MCP server an environment talks to: its options, starting one, and keeping one for the episodes of a worker."""

from __future__ import annotations

import atexit
import os

from pydantic import Field

from jaxagent.envs.http_client import HttpClient
from jaxagent.envs.mcp_client import HttpServer, McpServer, handshake
from jaxagent.envs.mcp_stdio import StdioServer
from jaxagent.errors import EnvFailure
from jaxagent.records import Record


class McpOptions(Record):
    """command: of a stdio server (with `env` added to its environment), or url: of a streamable HTTP one.

    token_variable: environment variable that holds the bearer token of `url`.
    files: split -> task file. checker, expert: "package.module:NAME" (path: its folder); the expert is
           (line, rng, sloppiness) -> scripted policy.
    reuse: keep one server for all episodes of a worker; only for servers without state.
    step_s: seconds a tool call may take, and after which a message's further calls are not made.
    max_steps: messages of an episode. system: the system message.
    tools_in_text: describe the tools in the system message, for chat templates that have no place for tools.
    """

    command: tuple[str, ...] = ()
    url: str = ""
    env: dict[str, str] = Field(default={})
    token_variable: str = ""
    files: dict[str, str] = Field(min_length=1)
    checker: str
    expert: str = ""
    path: str = ""
    reuse: bool = False
    step_s: float = Field(default=30.0, gt=0)
    max_steps: int = Field(default=20, ge=1)
    system: str = ""
    tools_in_text: bool = False


def start(options: McpOptions, *, first: bool = False) -> McpServer:
    """A server after the handshake. Raises EnvFailure. first: a short try, whose failures quote the server's stderr."""
    if options.url:
        token = os.environ.get(options.token_variable, "") if options.token_variable else ""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        server: McpServer = HttpServer(HttpClient(options.url, options.step_s, 0, headers))
    else:
        server = StdioServer(options.command, seconds=options.step_s, env=options.env, quoted=first)
    try:
        handshake(server)
    except EnvFailure:
        server.close()
        raise
    return server


_kept: dict[str, McpServer] = {}  # servers that a worker keeps, by their options


def claim(options: McpOptions) -> McpServer:
    """A server for one episode: its own, or with `reuse` the kept one. Raises EnvFailure."""
    if not options.reuse:
        return start(options)
    key = options.model_dump_json()
    if key not in _kept:
        _kept[key] = start(options)
        atexit.register(forget, options)
    return _kept[key]


def forget(options: McpOptions) -> None:
    """A kept server that failed serves no further episode; none outlives its process."""
    server = _kept.pop(options.model_dump_json(), None)
    if server is not None:
        server.close()
