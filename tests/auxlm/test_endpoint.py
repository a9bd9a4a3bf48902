"""The HTTP back end against a real server: good answers, 429, 5xx, 4xx, garbage, slow, cut."""

import asyncio
import time

import pytest
from pydantic import BaseModel

from jaxagent.auxlm.client import AuxLimits, AuxLM
from jaxagent.auxlm.endpoint import EndpointBackend, EndpointConfig
from jaxagent.auxlm.role import Role
from jaxagent.errors import ConfigError
from tests.auxlm.chat_server import ChatServer


class Answer(BaseModel):
    score: int


ROLE = Role("judge", Answer, "Score the text.")
GOOD = {"choices": [{"message": {"content": '{"score": 3}'}, "finish_reason": "stop"}]}


class Server(ChatServer):
    """Answers the requests in turn: (status, headers, body), or a function that writes to the handler."""

    def __init__(self):
        self.answers = []
        super().__init__(lambda body, number: self.answers.pop(0))

    @property
    def seen(self):
        """(path, headers, body) of each request."""
        return self.requests


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    yield server
    server.close()


def ask(server, *, retries=2, timeout_s=5.0, **config):
    backend = EndpointBackend(EndpointConfig(server.url, "tiny", timeout_s=timeout_s, **config))
    lm = AuxLM(backend, AuxLimits(retries=retries, backoff_s=0.01, timeout_s=10.0))
    try:
        return asyncio.run(lm.complete(ROLE, {"text": "x"})), lm
    finally:
        backend.close()


def test_request_and_answer(server, monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    server.answers = [(200, {}, GOOD)]
    record, _ = ask(server, api_key_env="MY_KEY", temperature=0.5, max_tokens=7)
    assert record == Answer(score=3)
    path, headers, body = server.seen[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer secret"
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("tiny", 0.5, 7)
    assert [message["role"] for message in body["messages"]] == ["system", "user"]


@pytest.mark.parametrize(
    "fault",
    [
        (429, {}, {"error": "slow down"}),
        (500, {}, b"oops"),
        (503, {}, b""),
        (200, {}, b"<html>not json"),
        (200, {}, {"choices": []}),
        (200, {}, {"choices": [{"message": {"content": None}, "finish_reason": "length"}]}),
        (200, {}, [1]),
        (200, {"Content-Length": "5000"}, b'{"choices"'),  # the connection breaks in the middle
        (200, {}, {"choices": [{"message": {"content": "no record"}}]}),
    ],
)
def test_passing_faults_are_tried_again(server, fault):
    server.answers = [fault, (200, {}, GOOD)]
    record, lm = ask(server)
    assert record == Answer(score=3)
    assert lm.counts["judge/retries"] == 1


def test_retry_after_is_respected(server):
    server.answers = [(429, {"Retry-After": "0.3"}, b""), (200, {}, GOOD)]
    record, _ = ask(server)
    assert record == Answer(score=3)
    assert server.times[1] - server.times[0] >= 0.3


@pytest.mark.parametrize("status", [400, 401, 404])
def test_mistakes_of_the_configuration_are_not_repeated(server, status):
    server.answers = [(status, {}, {"error": "no"})]
    record, lm = ask(server)
    assert record is None
    assert len(server.seen) == 1
    assert lm.counts["judge/failures"] == 1


def test_gives_up_after_two_retries(server):
    server.answers = [(500, {}, b"")] * 3
    record, _lm = ask(server)
    assert record is None
    assert len(server.seen) == 3


def trickle(handler):
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in range(200):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.02)
    except OSError:
        return  # the client hung up, as it should


@pytest.mark.parametrize("slow", [trickle, lambda handler: time.sleep(1.0)])
def test_slow_servers_are_cut(server, slow):
    server.answers = [slow, (200, {}, GOOD)]
    start = time.monotonic()
    record, lm = ask(server, timeout_s=0.2)
    assert record == Answer(score=3)
    assert lm.counts["judge/retries"] == 1
    assert time.monotonic() - start < 1.0


def test_nobody_listens(server):
    server.close()
    record, lm = ask(server, retries=1)
    assert record is None
    assert lm.counts["judge/failures"] == 1


def test_refusals(monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="NO_SUCH_KEY is not set"):
        EndpointBackend(EndpointConfig("http://x", "m", api_key_env="NO_SUCH_KEY"))
    with pytest.raises(ConfigError, match="starts with http"):
        EndpointBackend(EndpointConfig("api.example.com", "m"))
