"""The environment server against clients that lie, race, drip and crowd; what works is in test_http.py."""

import asyncio
import dataclasses
import json
import socket
import threading
import time

import pytest

from jaxagent.envs.doors import DOORS
from jaxagent.envs.http_client import HttpClient
from jaxagent.envs.inline_pool import InlinePool
from jaxagent.envs.server import EnvServer
from jaxagent.envs.server_http import Listener, Refused
from jaxagent.envs.server_sessions import Sessions
from jaxagent.errors import ConfigError, EnvFailure
from jaxagent.types import Prompt
from tests.envs.fake_envs import echo_spec, echo_task


@pytest.fixture
def listener():
    """Answers every request with what came."""
    server = Listener(
        "127.0.0.1", 0, lambda method, target, body: {"body": body}, token="secret", connections=2
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def connect(server: Listener) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=20)


def ask(connection: socket.socket, body: bytes = b"{}", token: str = "secret", length: str = "") -> bytes:
    head = (
        f"POST /x HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Length: {length or len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body)
    answer = b""
    while b"}" not in answer and (part := connection.recv(65536)):
        answer += part
    return answer


def test_a_wrong_token_is_refused_before_the_body_is_sent(listener):
    with connect(listener) as connection:
        assert b" 401 " in ask(connection, b"", token="guess", length="8000000")
        assert connection.recv(10) == b""  # and the connection is over: what follows is no request


@pytest.mark.parametrize("length", ["9000000", "9" * 5000, "-1", "x"])
def test_a_body_without_bounds_is_refused(listener, length):
    with connect(listener) as connection:
        assert b" 413 " in ask(connection, b"", length=length)


@pytest.mark.parametrize(
    "body", [b'{"x": NaN}', b'{"x": 1e', b"[" * 100_000, b'{"x": ' + b"9" * 5000 + b"}", b"\xff"]
)
def test_what_is_no_json_is_refused_and_the_connection_goes_on(listener, body):
    with connect(listener) as connection:
        assert b" 400 " in ask(connection, body)
        assert b" 200 " in ask(connection)


def test_a_client_that_drips_is_cut_off(listener):
    listener.read_s = 0.5
    with connect(listener) as connection:
        start = time.monotonic()
        connection.sendall(b"POST /x HTTP/1.1\r\n")
        while time.monotonic() < start + 15:
            try:
                connection.sendall(b"X: y\r\n")
            except OSError:
                break
            time.sleep(0.05)
        assert time.monotonic() - start < 10


def test_connections_are_bounded_and_free_again(listener):
    held = [connect(listener) for _ in range(2)]
    assert all(b" 200 " in ask(connection) for connection in held)
    with connect(listener) as third:
        assert b" 503 " in third.recv(1000)
    for connection in held:
        connection.close()
    for _ in range(100):
        with connect(listener) as later:
            if b" 200 " in ask(later):
                return
        time.sleep(0.05)
    raise AssertionError("the closed connections still take their places")


def sessions(**changes) -> Sessions:
    spec = dataclasses.replace(
        echo_spec(), **{"tasks": lambda split: [echo_task("a"), echo_task("b")], **changes}
    )
    return Sessions(spec, InlinePool())


def test_a_key_names_one_session_of_one_task():
    async def run():
        hosted = sessions()
        first = await hosted.create("train", "a", "key")
        assert await hosted.create("train", "a", "key") == first
        with pytest.raises(Refused, match="made a session of task 'a'"):
            await hosted.create("train", "b", "key")

    asyncio.run(run())


def test_a_request_that_waits_for_a_failed_opening_leaves_nothing_open():
    """The prompt fails the first time only: the repeated request must not open a second, nameless environment."""
    seen = []

    def prompt(task, first):
        seen.append(task.task_id)
        if len(seen) == 1:
            raise ValueError("the first time")
        return Prompt(())

    async def run():
        hosted = sessions(prompt=prompt)
        both = [hosted.create("train", "a", "key") for _ in range(2)]
        answers = await asyncio.gather(*both, return_exceptions=True)
        assert [answer.status for answer in answers if isinstance(answer, Refused)] == [500, 503]
        assert (len(hosted), len(seen)) == (0, 1)
        assert "session" in await hosted.create("train", "a", "key")

    asyncio.run(run())


class SlowExpert:
    def __init__(self, task, rng, sloppiness):
        pass

    def act(self, observation):
        time.sleep(2.0)
        return "word"


def test_an_expert_that_thinks_holds_nobody_up():
    async def run():
        hosted = sessions(expert=SlowExpert, max_steps=1)
        played = asyncio.ensure_future(hosted.demonstrate("train", "a", 0, 0.0))
        await asyncio.sleep(0)
        start = time.monotonic()
        opened = await hosted.create("train", "b", "")
        await hosted.step(opened["session"], 0, "word")
        assert time.monotonic() - start < 1.5
        assert not played.done()
        assert await played == {"messages": ["word"]}

    asyncio.run(run())


def test_keys_and_sloppiness_have_bounds():
    with EnvServer(DOORS, workers=1) as server:
        client, task = HttpClient(server.url, retries=0), DOORS.tasks("train")[0].task_id
        for path, body in (
            ("/v1/sessions", {"split": "train", "task_id": task, "key": "k" * 1000}),
            ("/v1/demonstrations", {"split": "train", "task_id": task, "seed": 0, "sloppiness": 7}),
        ):
            reply = client.send("POST", path, body)
            assert reply.status == 400, json.loads(reply.body)


def test_a_server_that_came_back_knows_the_old_sessions_no_more():
    with EnvServer(DOORS, workers=1) as server:
        port = int(server.url.rpartition(":")[2])
        opening = {"split": "train", "task_id": DOORS.tasks("train")[0].task_id}
        session = HttpClient(server.url).json("POST", "/v1/sessions", opening)["session"]
    with (
        EnvServer(DOORS, workers=1, port=port) as server,
        pytest.raises(EnvFailure, match="no session") as failed,
    ):
        HttpClient(server.url).json("POST", f"/v1/sessions/{session}/step", {"index": 0, "message": "x"})
    assert failed.value.kind == "died"


def test_a_port_in_use_is_a_config_error():
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match="another --host or --port"),
    ):
        Listener("127.0.0.1", taken.getsockname()[1], lambda *_: {})
