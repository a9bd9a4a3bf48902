"""JSON over HTTP with one deadline for a whole exchange, and retries for requests that may be repeated.

Whatever the server does (refuse, hang, dribble, die, answer garbage) ends as an `EnvFailure`. One connection a request:
nothing is shared between episodes, and a server's idle time-out cannot break the next call.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from jaxagent.errors import ConfigError, EnvFailure

MAX_ANSWER = 32 << 20
BUSY = (429, 502, 503, 504)  # the request was not taken up, or may have been: repeat it if that is harmless
BACKOFF_S = 0.2
KINDS = ("raised", "hang", "died", "garbage", "reset", "diverged", "user", "judge")  # of EnvFailure


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


@dataclass(frozen=True)
class HttpClient:
    """url: http(s)://host[:port][/prefix]. seconds: of one attempt. retries: of a repeatable request."""

    url: str
    seconds: float = 30.0
    retries: int = 2
    headers: Mapping[str, str] = field(default_factory=dict)

    def json(self, method: str, path: str, body: Any = None, *, repeatable: bool = True) -> dict[str, Any]:
        """The JSON object of a 2xx answer. Raises EnvFailure."""
        reply = self.send(method, path, body, repeatable=repeatable)
        if not 200 <= reply.status < 300:
            raise _refused(f"{method} {path}", reply)
        return as_object(reply.body, f"{method} {path}")

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        repeatable: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Whatever the server answers, after retries while it is out of reach or busy. Raises EnvFailure."""
        attempts = 1 + (self.retries if repeatable else 0)
        for attempt in range(attempts):
            last = attempt == attempts - 1
            try:
                reply = self._once(method, path, body, headers or {})
            except EnvFailure as failure:
                if last or failure.kind == "garbage":
                    raise
            else:
                if last or reply.status not in BUSY:
                    return reply
            time.sleep(BACKOFF_S * 2**attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _once(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> Reply:
        what, end = f"{method} {self.url}{path}", time.monotonic() + self.seconds
        connection, prefix = _connection(self.url, self.seconds)
        payload = None if body is None else json.dumps(body).encode()
        sent = {"Accept": "application/json", "Content-Type": "application/json", "Connection": "close"}
        # A dribbling server renews socket time-outs.
        alarm = threading.Timer(self.seconds, _cut, [connection])
        alarm.daemon = True
        try:
            alarm.start()
            connection.connect()
            connection.request(method, prefix + path, payload, {**sent, **self.headers, **headers})
            response = connection.getresponse()
            data = response.read(MAX_ANSWER + 1)
            if response.length and len(data) <= MAX_ANSWER:
                raise http.client.IncompleteRead(data, response.length)
            names = {name.lower(): value for name, value in response.getheaders()}
        except (OSError, http.client.HTTPException) as exc:
            if time.monotonic() >= end or isinstance(exc, TimeoutError):
                raise EnvFailure("hang", f"{what}: no answer in {self.seconds:g} s") from exc
            kind = "garbage" if isinstance(exc, http.client.BadStatusLine) and str(exc) else "died"
            kind = "died" if isinstance(exc, http.client.RemoteDisconnected) else kind
            raise EnvFailure(kind, f"{what}: {type(exc).__name__}: {exc}") from exc
        finally:
            alarm.cancel()
            connection.close()
        if time.monotonic() >= end:
            raise EnvFailure("hang", f"{what}: the answer was not complete in {self.seconds:g} s")
        if len(data) > MAX_ANSWER:
            raise EnvFailure("garbage", f"{what}: an answer of more than {MAX_ANSWER} bytes")
        return Reply(response.status, names, data)


def check_url(url: str, key: str) -> str:
    """The url without a final slash. Raises ConfigError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(f"{key}={url!r}: expected http://host:port or https://host/prefix")
    return url.rstrip("/")


def as_object(data: bytes, what: str) -> dict[str, Any]:
    """The JSON object that `data` is. Raises EnvFailure("garbage")."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise EnvFailure("garbage", f"{what}: the answer is not JSON: {data[:200]!r}") from exc
    if not isinstance(value, dict):
        raise EnvFailure("garbage", f"{what}: the answer is {type(value).__name__}, not a JSON object")
    return value


def _connection(url: str, seconds: float) -> tuple[http.client.HTTPConnection, str]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, parts.port, timeout=seconds, context=context), parts.path
    return http.client.HTTPConnection(host, parts.port, timeout=seconds), parts.path


def _cut(connection: http.client.HTTPConnection) -> None:
    """End a connection from the alarm's thread: the reader sees the end of the stream."""
    sock = connection.sock
    if sock is not None:
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has just been closed


def _refused(what: str, reply: Reply) -> EnvFailure:
    """The failure that a status and a body {"error": {"kind", "message"}} describe; other bodies are quoted."""
    kind, message = "died" if reply.status in (404, 410) else "raised", repr(reply.body[:300])
    try:
        error = json.loads(reply.body)["error"]
        message = str(error["message"])[:2000]
        kind = error["kind"] if error.get("kind") in KINDS else kind
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        message = f"{message} (not the form of an error)"
    return EnvFailure(kind, f"{what}: status {reply.status}: {message}")
