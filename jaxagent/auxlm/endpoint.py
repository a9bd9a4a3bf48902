"""Back end: any OpenAI-compatible `/chat/completions` endpoint. In: an `AuxRequest`. Out: the answer's text.

`post` reaches the server's other paths too (skills/embed.py asks for embeddings).

Plain HTTP from the standard library, in threads of its own. 408, 409, 425, 429 and 5xx, broken connections
and answers that are not the protocol's JSON can be tried again; every other status is a mistake of the
configuration.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from jaxagent.auxlm.client import AuxError, AuxRequest
from jaxagent.errors import ConfigError

RETRY_STATUS = (408, 409, 425, 429)
MAX_ANSWER_BYTES = 8 * 2**20
SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]*)?")  # Retry-After may also be a date, which is not read


@dataclass(frozen=True)
class EndpointConfig:
    """Where to ask and how. The key is read from the environment variable `api_key_env`, never from a file.

    base_url: up to and including the version, e.g. https://api.example.com/v1
    """

    base_url: str
    model: str
    api_key_env: str = ""
    temperature: float = 0.0
    max_tokens: int = 1024
    timeout_s: float = 120.0
    concurrency: int = 8


class EndpointBackend:
    """Owns the threads that wait for the endpoint, one a request, at most `concurrency` of them busy."""

    def __init__(self, config: EndpointConfig):
        if fault := url_fault(config.base_url):
            raise ConfigError(f"auxlm.base_url={config.base_url!r}: {fault}")
        if config.api_key_env and (fault := key_fault(config.api_key_env)):
            raise ConfigError(f"auxlm.api_key_env: {fault}")
        self.config = config
        self.name = f"{config.base_url} {config.model} {config.temperature} {config.max_tokens}"
        self._places = threading.BoundedSemaphore(config.concurrency)
        self._closed = False

    async def __call__(self, request: AuxRequest) -> str:
        return answer_text(await self.send(self._body(request)))

    async def send(self, body: Mapping[str, Any]) -> bytes:
        """The answer's body to one chat-completions request. Raises AuxError."""
        answer: Future[bytes] = Future()
        # Not a ThreadPoolExecutor: the interpreter would wait at its end for every request that is open.
        thread = threading.Thread(
            target=self._answer, args=(answer, json.dumps(body).encode()), name="auxlm", daemon=True
        )
        thread.start()
        return await asyncio.wrap_future(answer)

    def close(self) -> None:
        """Start no request any more; those that are open end with their threads, or with the process."""
        self._closed = True

    def _answer(self, answer: Future[bytes], body: bytes) -> None:
        with self._places:
            if self._closed or not answer.set_running_or_notify_cancel():
                answer.cancel()
                return
            try:
                answer.set_result(self.post(body))
            except BaseException as error:
                answer.set_exception(error)

    def _body(self, request: AuxRequest) -> dict[str, Any]:
        return {
            "model": self.config.model,
            "messages": [{"role": m.role, "content": m.content} for m in request.messages],
            "temperature": self.config.temperature,
            "max_tokens": self.config.max_tokens,
        }

    def post(self, body: bytes, path: str = "/chat/completions") -> bytes:
        """The answer's body to one request, in the caller's thread. Raises AuxError."""
        headers = {"Content-Type": "application/json", "User-Agent": "jaxagent"}
        if self.config.api_key_env:
            headers["Authorization"] = f"Bearer {os.environ[self.config.api_key_env]}"
        url = self.config.base_url.rstrip("/") + path
        deadline = time.monotonic() + self.config.timeout_s
        try:
            request = urllib.request.Request(url, body, headers)
            with urllib.request.urlopen(request, timeout=self.config.timeout_s) as response:
                return _read(response, deadline)
        except urllib.error.HTTPError as error:
            with error:
                raise _status_error(error, url) from error
        except (OSError, HTTPException) as error:  # refused, reset, timed out, cut in the middle
            raise AuxError(f"{url}: {type(error).__name__}: {error}") from error


def url_fault(url: str) -> str:
    """What is wrong with a base URL, or ""."""
    if not url.startswith(("http://", "https://")):
        return "give a URL that starts with http:// or https://, for example http://127.0.0.1:8000/v1"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        return f"no URL ({error})"
    if not host or port == 0 or parts.query or parts.fragment or not re.fullmatch(r"[!-~]+", url):
        return "expected http://HOST:PORT/v1: a host, then a path, without blanks, ? and #"
    return ""


def key_fault(variable: str) -> str:
    """What is wrong with the key in an environment variable, or ""; the key itself is never said."""
    if variable not in os.environ:
        return f"the environment variable {variable} is not set"
    if not re.fullmatch(r"[!-~]+", os.environ[variable]):
        return (
            f"the environment variable {variable} is empty or holds blanks, line ends or other characters that no "
            "HTTP header takes"
        )
    return ""


def answer_text(data: bytes) -> str:
    """The text in a chat completion. Raises AuxError when the answer is not one."""
    try:
        answer: Any = json.loads(data)
        choice = answer["choices"][0]
        text = choice["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise AuxError(f"not a chat completion ({type(error).__name__}): {data[:200]!r}") from error
    if not isinstance(text, str) or not text:
        raise AuxError(f"a chat completion without text (finish_reason {choice.get('finish_reason')!r})")
    return text


def _read(response: Any, deadline: float) -> bytes:
    """The whole body; a server that trickles is cut at the deadline, an endless one at MAX_ANSWER_BYTES."""
    parts, size = [], 0
    while part := response.read1(65536):
        parts.append(part)
        size += len(part)
        if time.monotonic() > deadline:
            raise AuxError("the answer took longer than timeout_s")
        if size > MAX_ANSWER_BYTES:
            raise AuxError(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
    return b"".join(parts)


def _status_error(error: urllib.error.HTTPError, url: str) -> AuxError:
    detail = error.read(300).decode("utf-8", "replace")
    again = error.code in RETRY_STATUS or error.code >= 500
    after = SECONDS.fullmatch(error.headers.get("Retry-After", "").strip())
    wait = float(after[0]) if again and after else 0.0
    return AuxError(f"{url}: HTTP {error.code}: {detail}", retry=again, after_s=wait, status=error.code)
