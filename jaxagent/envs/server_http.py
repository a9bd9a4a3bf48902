"""The listening half of the environment server: requests in, JSON answers out, with bounds on what a client can take.

In: an `answer(method, target, body)` function, called by one thread a connection. Out: its JSON, or the `error` object
of a `Refused`. The token is asked for before a body is read; a request must be complete in `READ_S` seconds however
slowly it drips; beyond `connections` open ones, the next is told 503 and closed.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from jaxagent.errors import ConfigError

MAX_REQUEST = 8 << 20
READ_S = 60.0  # from the end of one answer to the end of the next request, on one connection
FULL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

Answer = Callable[[str, str, Mapping[str, Any]], Mapping[str, Any]]
"""(method, target, body) -> the answer's JSON object. Raises Refused."""


class Refused(Exception):
    """An answer that is no success: HTTP status, and the `error` object of its body."""

    def __init__(self, status: int, kind: str, message: str):
        super().__init__(message)
        self.status, self.kind = status, kind


class Listener(ThreadingHTTPServer):
    """Owner of the listening socket and of one thread a connection. Raises ConfigError where it cannot listen."""

    daemon_threads = True
    request_queue_size = 128  # hundreds of workers may ask at once

    def __init__(self, host: str, port: int, answer: Answer, *, token: str = "", connections: int = 256):
        self.answer, self.token, self.read_s = answer, token, READ_S
        self._free = threading.BoundedSemaphore(connections)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as exc:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {exc}; choose another --host or --port"
            ) from exc

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return (
            f"http://[{host!s}]:{port}"
            if self.address_family == socket.AF_INET6
            else f"http://{host!s}:{port}"
        )

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with contextlib.suppress(OSError):
            request.settimeout(1.0)
            request.sendall(FULL)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks in the middle of a request is the client's affair, and costs its thread only."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _listener(self) -> Listener:
        assert isinstance(self.server, Listener)
        return self.server

    def handle_one_request(self) -> None:
        """One request, with a deadline until it is complete: a dripping client would renew a socket's own time-out."""
        self._deadline = threading.Timer(self._listener.read_s, self._cut)
        self._deadline.daemon = True
        self._deadline.start()
        try:
            super().handle_one_request()
        finally:
            self._deadline.cancel()

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: there are as many as steps."""

    def _serve(self) -> None:
        try:
            body = self._body()
            self._deadline.cancel()  # an environment may take its time
            status, fields = 200, self._listener.answer(self.command, self.path, body)
        except Refused as refused:
            status, fields = refused.status, {"error": {"kind": refused.kind, "message": str(refused)}}
        except Exception as exc:  # a fault of the server itself: this request's, not the others'
            status, fields = 500, {"error": {"kind": "raised", "message": f"{type(exc).__name__}: {exc}"}}
        payload = json.dumps(fields).encode()
        try:
            self.connection.settimeout(self._listener.read_s)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(payload)
        except OSError:
            self.close_connection = True  # the client has gone; its session stays until it is asked again

    def _body(self) -> dict[str, Any]:
        """The request's JSON object. A refusal before the body has been read ends the connection."""
        length, keep = self.headers.get("Content-Length", "0"), self.close_connection
        self.close_connection = True
        token, given = self._listener.token, self.headers.get("Authorization", "")
        if token and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise Refused(401, "raised", "the bearer token is missing or wrong")
        too_long = not length.isdecimal() or len(length) > 12 or int(length) > MAX_REQUEST
        if too_long or self.headers.get("Transfer-Encoding"):
            raise Refused(
                413, "raised", f"a body of {length:.40} bytes; {MAX_REQUEST} are allowed, with their length"
            )
        data = self.rfile.read(int(length))
        if len(data) < int(length):
            raise Refused(408, "raised", f"a body of {len(data)} bytes where {length} were announced")
        self.close_connection = keep
        try:
            value = json.loads(data, parse_constant=_no_constant) if data else {}
        except (ValueError, RecursionError) as exc:
            raise Refused(400, "raised", f"the body is not JSON: {exc}") from exc
        if not isinstance(value, dict):
            raise Refused(400, "raised", f"the body is {type(value).__name__}, not a JSON object")
        return value

    def _cut(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
