"""Reference server of the HTTP protocol: hosts any environment of ours. docs/environments/http.md has the JSON.

    python -m jaxagent.envs.server doors [--port 8900] [option=value ...]
    python -m jaxagent.envs.server RUN.yaml                 the `env` section of a run file

Listens on this machine only unless told otherwise (--host), takes a bearer token from an environment variable
(--token-variable), ends idle sessions and bounds their number. Requests are read by threads (server_http.py); sessions
live in one event loop (server_sessions.py), environments in worker processes (pool.py).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from jaxagent.config import EnvConfig
from jaxagent.envs.pool import EnvPool
from jaxagent.envs.protocol import EnvSpec
from jaxagent.envs.server_http import Listener, Refused
from jaxagent.envs.server_sessions import Sessions
from jaxagent.envs.table import find_env
from jaxagent.errors import ConfigError, JaxagentError
from jaxagent.run_file import read_run
from jaxagent.yaml_files import parse_yaml

CONNECTIONS = 64  # open at once beside two for every session: lists of tasks, demonstrations, retries
ANSWER_S = 3600.0  # the pool has deadlines of its own; this only bounds a thread's life
MAX_KEY = 200
LOCAL = ("127.0.0.1", "localhost", "::1")


class EnvServer:
    """Owner of a listening socket, an event loop in its own thread, and the pool. Use as a context manager."""

    def __init__(
        self,
        spec: EnvSpec,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        workers: int = 2,
        sessions: int = 64,
        idle_s: float = 600.0,
        token: str = "",
    ):
        self._pool = EnvPool(workers)
        self._sessions = Sessions(spec, self._pool, limit=sessions, idle_s=idle_s)
        self._idle_s = idle_s
        connections = CONNECTIONS + 2 * sessions
        self._http = Listener(host, port, self._answer, token=token, connections=connections)
        self._loop = asyncio.new_event_loop()
        self._threads = [
            threading.Thread(target=self._run_loop, daemon=True),
            threading.Thread(target=self._http.serve_forever, args=(0.1,), daemon=True),
        ]

    @property
    def url(self) -> str:
        return self._http.url

    def __enter__(self) -> EnvServer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        asyncio.run_coroutine_threadsafe(self._pool.close(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._threads[0].join(10)
        self._loop.close()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        reaper = self._loop.create_task(self._reap())
        self._loop.run_forever()
        reaper.cancel()
        self._loop.run_until_complete(asyncio.gather(reaper, return_exceptions=True))

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(min(self._idle_s / 4, 30.0))
            await self._sessions.expire()

    def _answer(self, method: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Called by the threads that read requests."""
        work = asyncio.run_coroutine_threadsafe(_route(self._sessions, method, path, body), self._loop)
        return work.result(ANSWER_S)


async def _route(sessions: Sessions, method: str, target: str, body: Mapping[str, Any]) -> dict[str, Any]:
    url = urlsplit(target)
    parts = tuple(unquote(part) for part in url.path.strip("/").split("/"))
    match (method, *parts):
        case ("GET", "v1", "environment"):
            return sessions.about()
        case ("GET", "v1", "tasks"):
            return await sessions.tasks(parse_qs(url.query).get("split", [""])[0])
        case ("POST", "v1", "sessions"):
            key = _field(body, "key", str) if "key" in body else ""
            if len(key) > MAX_KEY:
                raise Refused(400, "raised", f"a key of {len(key)} characters; at most {MAX_KEY} are kept")
            return await sessions.create(_field(body, "split", str), _field(body, "task_id", str), key)
        case ("POST", "v1", "sessions", name, "step"):
            return await sessions.step(name, _field(body, "index", int), _field(body, "message", str))
        case ("POST", "v1", "sessions", name, "evaluate"):
            return await sessions.evaluate(name)
        case ("DELETE", "v1", "sessions", name):
            return await sessions.release(name)
        case ("POST", "v1", "demonstrations"):
            seed, sloppiness = _field(body, "seed", int), _field(body, "sloppiness", (int, float))
            if not 0 <= sloppiness <= 1:
                raise Refused(400, "raised", f"sloppiness={sloppiness:.8g}; expected 0 to 1")
            task = _field(body, "split", str), _field(body, "task_id", str)
            return await sessions.demonstrate(*task, seed, float(sloppiness))
    raise Refused(404, "raised", f"there is no {method} {url.path}")


def _field(body: Mapping[str, Any], name: str, kind: Any) -> Any:
    value = body.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Refused(400, "raised", f"the request's {name!r} is missing or of the wrong type: {value!r:.80}")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(
        prog="jaxagent.envs.server", description="Host an environment over HTTP."
    )
    parser.add_argument("env", help="a name of the table of environments, or a run file")
    parser.add_argument("options", nargs="*", metavar="option=value", help="env.options, with a name only")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: this machine only)"
    )
    parser.add_argument("--port", type=int, default=8900)
    parser.add_argument("--workers", type=int, default=2, help="processes that host environments")
    parser.add_argument("--sessions", type=int, default=64, help="episodes open at once")
    parser.add_argument("--idle-s", type=float, default=600.0, help="seconds until an unused session ends")
    parser.add_argument(
        "--token-variable", default="", help="environment variable that holds the bearer token"
    )
    parsed = parser.parse_args(arguments)
    try:
        return _serve(parsed)
    except JaxagentError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _serve(parsed: argparse.Namespace) -> int:
    token = os.environ.get(parsed.token_variable, "") if parsed.token_variable else ""
    if parsed.token_variable and not token:
        raise ConfigError(f"--token-variable: ${parsed.token_variable} is not set")
    if parsed.host not in LOCAL and not token:
        raise ConfigError(
            f"--host {parsed.host} opens the environment to the network; give it a --token-variable"
        )
    config = _env_config(parsed.env, parsed.options)
    spec = find_env(config.name, config.options)
    server = EnvServer(
        spec,
        host=parsed.host,
        port=parsed.port,
        workers=parsed.workers,
        sessions=parsed.sessions,
        idle_s=parsed.idle_s,
        token=token,
    )
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with server:
        print(f"{spec.name} at {server.url}", flush=True)
        stop.wait()
    return 0


def _env_config(env: str, options: Sequence[str]) -> EnvConfig:
    if env.endswith((".yaml", ".yml")) and Path(env).exists():
        if options:
            raise ConfigError(f"{' '.join(options)}: options come from the run file {env}; change them there")
        return read_run(env).env
    pairs = [option.partition("=") for option in options]
    unfit = [name for name, equals, _ in pairs if not equals]
    if unfit:
        raise ConfigError(f"{unfit[0]!r}: expected option=value")
    return EnvConfig(name=env, options={name: parse_yaml(value) for name, _, value in pairs})


if __name__ == "__main__":
    sys.exit(main())
