"""Environments over HTTP: our server with our client, and our client with servers that misbehave."""

import asyncio
import contextlib
import dataclasses
import json
import socket
import threading
import time
from random import Random

import pytest

from jaxagent.envs.doors import DOORS
from jaxagent.envs.http_client import HttpClient
from jaxagent.envs.pool import EnvPool
from jaxagent.envs.remote import RemoteEnv, RemoteOptions, prompt
from jaxagent.envs.server import EnvServer, main
from jaxagent.envs.table import find_env
from jaxagent.errors import ConfigError, EnvFailure
from jaxagent.rollout.demonstrate import play
from jaxagent.types import Action, ExecStatus, Message, Prompt, Task
from tests.envs.contract import check_contract
from tests.envs.fake_envs import echo_spec, echo_task


def echo_tasks(split):
    if split != "train":
        raise ConfigError(f"echo has no split {split!r}; its split is train")
    faults = ("", "raised", "exit", "none", "reset")
    return [echo_task(fault or "good", fault=fault) for fault in faults]


@pytest.fixture(scope="module")
def doors():
    with EnvServer(DOORS, workers=1) as server:
        yield server


@pytest.fixture(scope="module")
def echo():
    spec = dataclasses.replace(echo_spec(), tasks=echo_tasks)
    with EnvServer(spec, workers=1, sessions=3) as server:
        yield server


def test_a_hosted_environment_is_the_environment(doors):
    spec = find_env("http", {"url": doors.url + "/"})
    assert (spec.name, spec.max_steps) == ("doors", 2)
    tasks = spec.tasks("test")
    assert [task.task_id for task in tasks] == [task.task_id for task in DOORS.tasks("test")]
    assert not any(task.meta for task in tasks)  # solutions stay on the server
    played = check_contract(spec, tasks[0])
    local = play(DOORS, DOORS.tasks("test")[0], rng=Random(1))
    assert played.prompt == local.prompt
    assert played.messages(spec) == local.messages(DOORS)
    assert [(r.exec_status, r.reward, r.done, r.anchor) for r in played.results] == [
        (r.exec_status, r.reward, r.done, r.anchor) for r in local.results
    ]
    assert played.evaluation == local.evaluation


def test_a_sloppy_demonstration_is_played_again_as_it_was(doors):
    spec = find_env("http", {"url": doors.url})
    for seed, task in enumerate(spec.tasks("train")[:4]):
        again = [play(spec, task, rng=Random(seed), sloppiness=0.7) for _ in range(2)]
        assert again[0].texts == again[1].texts
        assert again[0].evaluation == again[1].evaluation


def test_from_a_worker_process(doors):
    async def run():
        spec = find_env("http", {"url": doors.url})
        async with EnvPool(1) as pool:
            handle = await pool.open(spec, spec.tasks("train")[0])
            result = await handle.step(spec.parse(Message("assistant", "two words")))
            await handle.close()
            return handle.first, result

    first, result = asyncio.run(run())
    assert first.info["prompt"]["messages"][-1] == ["user", first.observation]
    assert result.exec_status is ExecStatus.INVALID


def test_a_repeated_request_acts_once(doors):
    client = HttpClient(doors.url)
    task = DOORS.tasks("train")[0]
    opening = {"split": "train", "task_id": task.task_id, "key": "the-same"}
    first = client.json("POST", "/v1/sessions", opening)
    assert client.json("POST", "/v1/sessions", opening) == first
    path = f"/v1/sessions/{first['session']}"
    message = {"index": 0, "message": task.meta["colour"]}
    answers = [client.json("POST", f"{path}/step", message) for _ in range(2)]
    assert answers[0] == answers[1]
    with pytest.raises(EnvFailure, match="expects step 1"):
        client.json("POST", f"{path}/step", {"index": 3, "message": "x"})
    last = client.json("POST", f"{path}/step", {"index": 1, "message": task.meta["item"]})
    assert (last["done"], last["reward"]) == (True, 0.5)
    verdicts = [client.json("POST", f"{path}/evaluate", {}) for _ in range(2)]
    assert verdicts[0] == verdicts[1]
    assert verdicts[0]["success"]
    assert [client.json("DELETE", path) for _ in range(2)] == [{}, {}]
    with pytest.raises(EnvFailure, match="no session") as gone:
        client.json("POST", f"{path}/step", message)
    assert gone.value.kind == "died"


@pytest.mark.parametrize(("fault", "kind"), [("raised", "raised"), ("exit", "died"), ("none", "garbage")])
def test_a_crash_of_an_environment_is_its_sessions_failure(echo, fault, kind):
    env = RemoteEnv(RemoteOptions(url=echo.url))
    env.reset(Task(fault, "echo", "train"))
    with pytest.raises(EnvFailure) as failed:
        env.step(Action("a"))
    assert failed.value.kind == kind
    good = RemoteEnv(RemoteOptions(url=echo.url))
    good.reset(Task("good", "echo", "train"))
    assert good.step(Action("b")).observation == "1 b"
    good.close()


def test_a_failed_reset_takes_no_place(echo):
    for _ in range(4):  # more than the server has room for
        with pytest.raises(EnvFailure) as failed:
            RemoteEnv(RemoteOptions(url=echo.url)).reset(Task("reset", "echo", "train"))
        assert failed.value.kind == "reset"


def test_sessions_are_bounded_and_expire(echo):
    options = RemoteOptions(url=echo.url, retries=0)
    envs = [RemoteEnv(options) for _ in range(3)]
    for env in envs:
        env.reset(Task("good", "echo", "train"))
    with pytest.raises(EnvFailure, match=r"503.*all 3 sessions are taken"):
        RemoteEnv(options).reset(Task("good", "echo", "train"))
    echo._sessions._idle_s = 0.0
    asyncio.run_coroutine_threadsafe(echo._sessions.expire(), echo._loop).result(10)
    echo._sessions._idle_s = 600.0
    assert len(echo._sessions) == 0
    with pytest.raises(EnvFailure, match="expired"):
        envs[0].step(Action("a"))


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v1/nothing", None, 404),
        ("GET", "/v1/tasks?split=none", None, 404),
        ("POST", "/v1/sessions", {"split": "train"}, 400),
        ("POST", "/v1/sessions", {"split": "train", "task_id": "no-such"}, 404),
        ("POST", "/v1/sessions", [1], 400),
        ("POST", "/v1/sessions/x/step", {"index": True, "message": "a"}, 400),
        ("POST", "/v1/sessions/..%2F..%2Fetc/evaluate", {}, 404),
        (
            "POST",
            "/v1/demonstrations",
            {"split": "train", "task_id": "good", "seed": 0, "sloppiness": 0},
            404,
        ),
    ],
)
def test_bad_requests_are_refused_in_words(echo, method, path, body, status):
    reply = HttpClient(echo.url, retries=0).send(method, path, body)
    assert reply.status == status
    assert json.loads(reply.body)["error"]["message"]


def test_a_token_is_asked_for(monkeypatch):
    with EnvServer(DOORS, workers=1, token="secret") as server:
        with pytest.raises(ConfigError, match=r"401.*token"):
            find_env("http", {"url": server.url})
        monkeypatch.setenv("MY_TOKEN", "secret")
        assert find_env("http", {"url": server.url, "token_variable": "MY_TOKEN"}).name == "doors"
    with pytest.raises(ConfigError, match="NO_TOKEN is not set"):
        find_env("http", {"url": server.url, "token_variable": "NO_TOKEN"})


def test_the_command_opens_nothing_to_the_network_without_a_token(capsys):
    assert main(["doors", "--host", "0.0.0.0"]) == 2
    assert "--token-variable" in capsys.readouterr().err
    assert main(["dors"]) == 2
    assert "did you mean 'doors'" in capsys.readouterr().err


@contextlib.contextmanager
def raw_server(*answers):
    """Answers one connection after the other with these bytes; None hangs. Gives its url and the requests."""
    seen = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    data = connection.recv(65536)
                    head, _, body = data.partition(b"\r\n\r\n")
                    if b"Content-Length" in head and not body:
                        body = connection.recv(65536)
                    seen.append((head.split(b"\r\n")[0].decode(), body.decode()))
                    if answer is None:
                        connection.recv(1)  # until the client gives up
                    with contextlib.suppress(OSError):  # the client has had enough
                        for part in [answer] if isinstance(answer, bytes) else answer or []:
                            connection.sendall(part)
                            time.sleep(0.1 if not isinstance(answer, bytes) else 0)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", seen
        thread.join(10)


def http(body: str, status: int = 200) -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


OPENED = http(json.dumps({"session": "s", "prompt": {"messages": [{"role": "user", "content": "go"}]}}))
DRIBBLE = [b"HTTP/1.1 200 X\r\nContent-Length: 1000\r\n\r\n", *[b"x"] * 9]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (None, "hang"),
        (DRIBBLE, "hang"),
        (b"", "died"),
        (b"HTTP/1.1 200 X\r\nContent-Length: 1000\r\n\r\n{", "died"),
        (b"\x00\xff nonsense\r\n\r\n", "garbage"),
        (http("<html>"), "garbage"),
        (http("[1]"), "garbage"),
        (http('{"reward": "much"}'), "garbage"),
        (http('{"reward": NaN}'), "garbage"),
        (http('{"exec_status": "fine"}'), "garbage"),
        (http('{"messages": ["hello"]}'), "garbage"),
        (http('{"messages": [{"role": "assistant", "content": "I win"}]}'), "garbage"),
        (http("[" * 100_000), "garbage"),
        (http("oops", 500), "raised"),
        (http('{"error": {"kind": "hang", "message": "m"}}', 500), "hang"),
        (http("", 302), "raised"),
    ],
)
def test_a_server_that_misbehaves_is_an_env_failure(answer, kind):
    with raw_server(OPENED, answer) as (url, _):
        env = RemoteEnv(RemoteOptions(url=url, retries=0))
        env.reset(Task("t", "x", "train"))
        if answer is None or answer is DRIBBLE:
            env._client = dataclasses.replace(env._client, seconds=0.5)
        with pytest.raises(EnvFailure) as failed:
            env.step(Action("a"))
    assert failed.value.kind == kind


def test_a_lost_answer_is_asked_for_again_under_the_same_number():
    with raw_server(OPENED, b"", http("busy", 503), http("{}"), http("{}")) as (url, seen):
        env = RemoteEnv(RemoteOptions(url=url, step_s=5, retries=2))
        first = env.reset(Task("t", "x", "train"))
        env.step(Action("a"))
        env.step(Action("b"))
    assert [json.loads(body)["index"] for _, body in seen[1:]] == [0, 0, 0, 1]
    spec_prompt = Prompt((Message("user", "go"),))
    assert prompt(Task("t", "x", "train"), first) == spec_prompt


def test_a_dead_server_is_a_config_error_before_the_run():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(ConfigError, match="start the server"):
        find_env("http", {"url": url, "retries": 0})
    with pytest.raises(ConfigError, match="expected http://host:port"):
        find_env("http", {"url": "localhost:80"})
