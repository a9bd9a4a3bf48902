"""MCP servers: the example of docs/, the official SDK's servers, and servers that misbehave."""

import contextlib
import itertools
import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxagent.envs import mcp_servers, mcp_tools
from jaxagent.envs.http_client import HttpClient
from jaxagent.envs.mcp_client import HttpServer, ToolError, call_tool, handshake, list_tools
from jaxagent.envs.mcp_stdio import StdioServer
from jaxagent.envs.table import find_env
from jaxagent.errors import ConfigError, EnvFailure
from jaxagent.types import ExecStatus, Message
from tests.envs.contract import check_contract
from tests.envs.needs import package
from tests.envs.test_http import http, raw_server

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "mcp_server"
NOTES = {
    "command": [sys.executable, str(EXAMPLE / "server.py")],
    "files": {"train": str(EXAMPLE / "tasks.jsonl")},
    "checker": "checks:judge",
    "expert": "checks:Expert",
    "path": str(EXAMPLE),
}


@pytest.fixture(autouse=True)
def same_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def call(name: str, **arguments) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_the_example_is_short_and_keeps_the_contract():
    for name in ("server.py", "checks.py"):
        assert len((EXAMPLE / name).read_text().splitlines()) < 60
    spec = find_env("mcp", NOTES)
    played = check_contract(spec, spec.tasks("train")[2])
    assert [tool["function"]["name"] for tool in played.prompt.tools] == ["read_note", "write_note"]
    assert played.results[1].messages == (Message("tool", "saved"),)
    assert (played.evaluation.passed, played.evaluation.total) == (2, 2)


def test_an_episode_by_hand():
    spec = find_env("mcp", NOTES)
    env = spec.make()
    first = env.reset(spec.tasks("train")[0])
    assert first.observation == "Write into the note shopping: eggs. Then say done."
    two = env.step(
        spec.parse(Message("assistant", call("read_note", title="shopping") + call("read_note", title="x")))
    )
    assert [message.content for message in two.messages] == ["milk, bread", "KeyError: 'x'"]
    assert two.exec_status is ExecStatus.RUNTIME_ERROR
    unknown = env.step(spec.parse(Message("assistant", call("delete_note", title="x"))))
    assert unknown.exec_status is ExecStatus.INVALID
    assert "read_note, write_note" in unknown.observation
    end = env.step(spec.parse(Message("assistant", "All done.")))
    assert end.done
    verdict = env.evaluate()
    assert (verdict.success, verdict.passed, verdict.failures) == (
        False,
        1,
        ("the note has the wanted text",),
    )
    env.close()


def test_each_episode_has_a_server_of_its_own_unless_reused():
    for reuse, seen in ((False, "milk, bread"), (True, "changed")):
        spec = find_env("mcp", {**NOTES, "reuse": reuse})
        task = spec.tasks("train")[0]
        for text in (
            call("write_note", title="shopping", text="changed"),
            call("read_note", title="shopping"),
        ):
            env = spec.make()
            env.reset(task)
            last = env.step(spec.parse(Message("assistant", text)))
            env.close()
        assert last.observation == seen
    while mcp_servers._kept:
        mcp_servers._kept.popitem()[1].close()


def test_tools_in_the_text():
    spec = find_env("mcp", {**NOTES, "tools_in_text": True, "system": "Be brief."})
    task = spec.tasks("train")[0]
    env = spec.make()
    opening = spec.prompt(task, env.reset(task))
    env.close()
    assert opening.tools == ()
    assert opening.messages[0].content.startswith("Be brief.\nYou can call these tools")
    assert '"name": "write_note"' in opening.messages[0].content


FAULTY = """
import json, os, sys, time
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, reply = message["method"], {"jsonrpc": "2.0", "id": message["id"]}
    if method == "initialize":
        print(json.dumps({**reply, "result": {"protocolVersion": "x", "capabilities": {}}}), flush=True)
    elif method == "tools/list":
        print(json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}))
        print(json.dumps({"jsonrpc": "2.0", "id": "s1", "method": "ping"}), flush=True)
        assert json.loads(sys.stdin.readline())["result"] == {}
        tools = [{"name": message["params"].get("cursor", "first")}]
        more = {} if message["params"] else {"nextCursor": "second"}
        print(json.dumps({**reply, "result": {"tools": tools, **more}}), flush=True)
    else:
        name = message["params"]["name"]
        if name == "long":
            content = [{"type": "text", "text": "x" * 2_000_000}]
            print(json.dumps({**reply, "result": {"content": content}}), flush=True)
            continue
        if name == "hang":
            time.sleep(1000)
        if name == "exit":
            os._exit(3)
        if name == "refuse":
            print(json.dumps({**reply, "error": {"code": -32602, "message": "no such tool"}}), flush=True)
        print({"garbage": "Traceback!", "empty": json.dumps({**reply})}.get(
            name, json.dumps({**reply, "result": {"content": "text"}})), flush=True)
"""


@pytest.fixture
def faulty():
    server = StdioServer([sys.executable, "-c", FAULTY], seconds=60, env={})
    handshake(server)
    yield server
    server.close()


def test_pages_notifications_and_pings(faulty):
    assert [tool["function"]["name"] for tool in list_tools(faulty)] == ["first", "second"]


@pytest.mark.parametrize(
    ("name", "kind"), [("exit", "died"), ("garbage", "garbage"), ("empty", "garbage"), ("text", "garbage")]
)
def test_a_server_that_misbehaves_is_an_env_failure(faulty, name, kind):
    with pytest.raises(EnvFailure) as failed:
        call_tool(faulty, name, {})
    assert failed.value.kind == kind


def test_a_hang_ends_and_a_refusal_is_words(faulty):
    with pytest.raises(ToolError, match="no such tool"):
        call_tool(faulty, "refuse", {})
    faulty._seconds = 0.3
    with pytest.raises(EnvFailure, match=r"no answer in 0\.3 s"):
        call_tool(faulty, "hang", {})


def test_a_server_that_does_not_read_is_a_hang_and_no_block():
    server = StdioServer([sys.executable, "-c", "import time; time.sleep(1000)"], seconds=0.5, env={})
    with pytest.raises(EnvFailure, match="reads nothing") as failed:
        server.request("tools/call", {"name": "x" * 1_000_000})
    assert failed.value.kind == "hang"
    server.close()


def test_long_results_are_cut(faulty):
    text, error = call_tool(faulty, "long", {})
    assert (len(text) < 1_100_000, error) == (True, False)
    assert text.endswith("x\n[result cut: 951424 more characters]")


def test_the_calls_of_one_message_have_a_limit_together(monkeypatch):
    spec = find_env("mcp", {**NOTES, "step_s": 20})
    env = spec.make()
    env.reset(spec.tasks("train")[0])
    clock = itertools.count(0.0, 15.0)
    monkeypatch.setattr(mcp_tools, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    result = env.step(spec.parse(Message("assistant", call("read_note", title="shopping") * 3)))
    assert [message.content for message in result.messages] == [
        "milk, bread",
        "Error: not called: the calls before it took 20 s",
        "Error: not called: the calls before it took 20 s",
    ]
    env.close()


def test_closing_a_dead_http_server_says_nothing():
    hello = http(json.dumps({"jsonrpc": "2.0", "id": 1, "result": {}})).replace(
        b"\r\n\r\n", b"\r\nMcp-Session-Id: s7\r\n\r\n", 1
    )
    with raw_server(hello, http("", 202)) as (url, _):
        server = HttpServer(HttpClient(f"{url}/mcp", 5, 0))
        handshake(server)
    server.close()


HOST = """
import sys, time
from jaxagent.envs.mcp_stdio import StdioServer
launcher = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(1000)'])"
server = StdioServer([sys.executable, "-c", launcher], seconds=9, env={})
print(server._process.pid, flush=True)
time.sleep(1000)
"""


def living(group: int) -> list[str]:
    """The processes of a group that are no zombies."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rsplit(")", 1)[1].split()
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(stat.parent.name)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the processes in /proc")
def test_a_server_and_what_it_started_die_with_their_worker():
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True, cwd=root) as host:
        assert host.stdout is not None
        group = int(host.stdout.readline())
        for _ in range(400):
            if len(living(group)) == 2:
                break
            time.sleep(0.05)
        assert len(living(group)) == 2  # the launcher, and the server that it started
        host.kill()
    for _ in range(400):
        if not living(group):
            return
        time.sleep(0.05)
    raise AssertionError(f"outlived their worker: {living(group)}")


def test_http_answers_as_json_and_as_events():
    hello = http(json.dumps({"jsonrpc": "2.0", "id": 1, "result": {}})).replace(
        b"\r\n\r\n", b"\r\nMcp-Session-Id: s7\r\n\r\n", 1
    )
    events = ': comment\n\ndata: {"jsonrpc": "2.0", "method": "notifications/progress"}\n\n'
    events += (
        'event: message\ndata: {"jsonrpc": "2.0", "id": 2,\ndata: "result": {"tools": [{"name": "t"}]}}\n\n'
    )
    stream = http(events).replace(b"\r\n\r\n", b"\r\nContent-Type: text/event-stream\r\n\r\n", 1)
    with raw_server(hello, http("", 202), stream, http("", 405)) as (url, seen):
        server = HttpServer(HttpClient(f"{url}/mcp", 30, 0))
        handshake(server)
        assert [tool["function"]["name"] for tool in list_tools(server)] == ["t"]
        server.close()
    assert [line for line, _ in seen] == ["POST /mcp HTTP/1.1"] * 3 + ["DELETE /mcp HTTP/1.1"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"command": []}, "exactly one"),
        ({"url": "http://x"}, "exactly one"),
        ({"command": ["no-such-program-here"]}, "no program 'no-such-program-here'"),
        ({"command": [sys.executable, "-c", "pass"]}, "does not answer"),
        (
            {"command": [sys.executable, "-c", "import no_such_module"]},
            r"(?s)exit code 1; its stderr ends:.*no_such_module",
        ),
        ({"command": [], "url": "x"}, "expected http"),
        ({"checker": "checks:judg"}, "did you mean 'judge'"),
        ({"files": {"train": "none.jsonl"}}, "there is no such file"),
        ({"files": {}}, "files"),
    ],
)
def test_what_does_not_fit_is_a_config_error(change, message):
    with pytest.raises(ConfigError, match=message):
        find_env("mcp", {**NOTES, **change})


SDK = """
try:
    from mcp.server.fastmcp import FastMCP as Server
except ImportError:
    from mcp.server.mcpserver import MCPServer as Server
server = Server("adder")

@server.tool()
def add(a: int, b: int) -> int:
    "Add two numbers."
    if a == 13:
        raise ValueError("unlucky")
    return a + b
"""


def check_sdk_server(server):
    handshake(server)
    (tool,) = list_tools(server)
    assert tool["function"]["name"] == "add"
    assert set(tool["function"]["parameters"]["properties"]) == {"a", "b"}
    assert call_tool(server, "add", {"a": 2, "b": 3}) == ("5", False)
    assert call_tool(server, "add", {"a": 13, "b": 3})[1]
    assert call_tool(server, "add", {"a": "x"})[1]
    server.close()


@package("mcp", "pip install mcp")
def test_a_server_of_the_official_sdk_over_stdio(tmp_path):
    (tmp_path / "adder.py").write_text(SDK + "\nserver.run()\n")
    check_sdk_server(StdioServer([sys.executable, str(tmp_path / "adder.py")], seconds=120, env={}))


@package("mcp", "pip install mcp")
def test_a_server_of_the_official_sdk_over_http(tmp_path):
    serve = """
    import socket, uvicorn
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="error")).run(sockets=[listener])
    """
    (tmp_path / "adder.py").write_text(SDK + textwrap.dedent(serve))
    command = [sys.executable, str(tmp_path / "adder.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            check_sdk_server(HttpServer(HttpClient(f"http://127.0.0.1:{port}/mcp", 60, 0)))
        finally:
            process.kill()
