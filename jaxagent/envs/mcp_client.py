"""The client's half of the Model Context Protocol that an agent needs: initialize, tools/list, tools/call.

JSON-RPC 2.0 as lines through a child's pipes (mcp_stdio.py), or as POSTs of the "streamable HTTP" transport
(`HttpServer`), whose answer is one JSON object or a stream of events. Synchronous, one request at a time, no packages.
Every fault of a server is an `EnvFailure`; what a server refuses in words is `ToolError`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from jaxagent.envs.http_client import HttpClient, as_object
from jaxagent.errors import EnvFailure

PROTOCOL = "2025-06-18"
MAX_PAGES = 100
MAX_RESULT = 1 << 20  # characters of one result; the rollout cuts far below that


class ToolError(Exception):
    """A JSON-RPC error: the server refuses a request (an unknown tool, arguments of the wrong form)."""


@runtime_checkable
class McpServer(Protocol):
    """A running server."""

    def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]: ...

    def notify(self, method: str) -> None: ...

    def close(self) -> None: ...


def handshake(server: McpServer) -> None:
    """Open the session."""
    client = {"name": "jaxagent", "version": "1"}
    hello = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client}
    try:
        server.request("initialize", hello)
    except ToolError as exc:
        raise EnvFailure("reset", f"the MCP server refuses the session: {exc}") from exc
    server.notify("notifications/initialized")


def list_tools(server: McpServer) -> list[dict[str, Any]]:
    """Every tool as {"type": "function", "function": {"name", "description", "parameters"}}."""
    found: list[dict[str, Any]] = []
    cursor: Any = None
    for _ in range(MAX_PAGES):
        try:
            page = server.request("tools/list", {} if cursor is None else {"cursor": cursor})
        except ToolError as exc:
            raise EnvFailure("reset", f"the MCP server lists no tools: {exc}") from exc
        for tool in page.get("tools") or ():
            if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
                raise EnvFailure("garbage", f"tools/list: a tool without a name: {tool!r:.200}")
            schema = tool.get("inputSchema") or {"type": "object", "properties": {}}
            shown = {"name": tool["name"], "description": str(tool.get("description") or "")}
            found.append({"type": "function", "function": {**shown, "parameters": schema}})
        cursor = page.get("nextCursor")
        if cursor is None:
            return found
    raise EnvFailure("garbage", f"tools/list: more than {MAX_PAGES} pages")


def call_tool(server: McpServer, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
    """(text of the result, whether it is an error). Raises ToolError when the server refuses the call."""
    result = server.request("tools/call", {"name": name, "arguments": dict(arguments)})
    content = result.get("content")
    if not isinstance(content, list):
        raise EnvFailure("garbage", f"tools/call {name}: the result has no list `content`")
    parts = [_text(part) for part in content]
    if not parts and result.get("structuredContent") is not None:
        parts = [json.dumps(result["structuredContent"], ensure_ascii=False)]
    text = "\n".join(parts)
    if len(text) > MAX_RESULT:
        text = f"{text[:MAX_RESULT]}\n[result cut: {len(text) - MAX_RESULT} more characters]"
    return text, result.get("isError") is True


def _text(part: Any) -> str:
    """The text of one content block; what is no text is named."""
    if not isinstance(part, dict):
        raise EnvFailure("garbage", f"tools/call: a content block that is {type(part).__name__}")
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return part["text"]
    if (
        part.get("type") == "resource"
        and isinstance(part.get("resource"), dict)
        and "text" in part["resource"]
    ):
        return str(part["resource"]["text"])
    return f"[{part.get('type')}]"


def result_of(message: Mapping[str, Any], method: str) -> dict[str, Any]:
    """The result of a response. Raises ToolError for an error, EnvFailure for neither."""
    error, result = message.get("error"), message.get("result")
    if isinstance(error, Mapping):
        raise ToolError(str(error.get("message", error)))
    if not isinstance(result, dict):
        raise EnvFailure("garbage", f"{method}: a response with neither result nor error")
    return result


class HttpServer:
    """A session with a server of the streamable HTTP transport."""

    def __init__(self, client: HttpClient):
        self._client, self._ids = client, itertools.count(1)
        self._headers: dict[str, str] = {"Accept": "application/json, text/event-stream"}

    def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        number = next(self._ids)
        body = {"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params)}
        reply = self._client.send("POST", "", body, repeatable=False, headers=self._headers)
        if reply.status != 200:
            raise EnvFailure("died" if reply.status == 404 else "raised", f"{method}: status {reply.status}")
        if "mcp-session-id" in reply.headers:
            self._headers["Mcp-Session-Id"] = reply.headers["mcp-session-id"]
        self._headers["MCP-Protocol-Version"] = PROTOCOL
        stream = "text/event-stream" in reply.headers.get("content-type", "")
        for data in _events(reply.body) if stream else [reply.body]:
            message = as_object(data, method)
            if "method" not in message and message.get("id") == number:
                return result_of(message, method)
        raise EnvFailure("garbage", f"{method}: the answer holds no response to request {number}")

    def notify(self, method: str) -> None:
        message = {"jsonrpc": "2.0", "method": method}
        self._client.send("POST", "", message, repeatable=False, headers=self._headers)

    def close(self) -> None:
        """Servers without sessions answer 405; none of it concerns the episode any more."""
        if "Mcp-Session-Id" in self._headers:
            with contextlib.suppress(EnvFailure):
                self._client.send("DELETE", "", repeatable=False, headers=self._headers)


def _events(body: bytes) -> Iterator[bytes]:
    """The data of each server-sent event; its lines are joined."""
    lines: list[bytes] = []
    for line in [*body.splitlines(), b""]:
        if line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
        elif not line and lines:
            yield b"\n".join(lines)
            lines = []
