"""Conversations over the wire: legal histories whatever the environment answers, calls to actions, faults to drops."""

import asyncio
import json

import pytest

from jaxagent.auxlm.chat import ChatAgent, ChatEndpoint, ChatRules
from jaxagent.auxlm.chat_wire import ELSEWHERE, Conversation, read_answer, wire_tools
from jaxagent.auxlm.client import AuxError
from jaxagent.auxlm.endpoint import EndpointBackend, EndpointConfig
from jaxagent.chat.tools import parse_tool_calls
from jaxagent.envs.inline_pool import InlinePool
from jaxagent.errors import ConfigError, EnvFailure, RolloutError
from jaxagent.plan import Plan
from jaxagent.rollout.limits import EpisodeLimits
from jaxagent.rollout.talk import run_talk
from jaxagent.types import Message, Sampling, Status, Stop, ToolCall
from tests.auxlm.chat_server import completion, serving
from tests.rollout.tool_env import ADD, SUMS

ADDING = ("add", '{"a": 1, "b": 10}')


@pytest.fixture
def serve(monkeypatch):
    with serving(monkeypatch) as start:
        yield start


def read(body):
    return read_answer(json.dumps(body).encode())


# --- answers to messages ---------------------------------------------------------------------------------


def test_a_text_a_call_and_a_count():
    answer = read(completion("Adding.", calls=[ADDING]))
    assert answer.message == Message("assistant", "Adding.", tool_calls=(ToolCall("add", {"a": 1, "b": 10}),))
    assert (answer.calls, answer.context, answer.sampled, answer.stop) == (("id0",), 20, 4, Stop.STOP)
    cut = read(completion("Half a", finish="length", usage=None))
    assert (cut.stop, cut.context, cut.sampled) == (Stop.MAX_TOKENS, None, None)


@pytest.mark.parametrize(
    ("body", "content", "thinking"),
    [
        (completion("<think>\nhm\n</think>\n\nred"), "red", "hm"),
        (completion("<think>never ends"), "", "never ends"),
        (completion("red", reasoning_content="hm"), "red", "hm"),
        (completion(None, finish="length", reasoning="hm"), "", "hm"),
        (completion([{"type": "text", "text": "re"}, {"type": "text", "text": "d"}]), "red", None),
        (completion("a\ud800b"), "a?b", None),
    ],
)
def test_thinking_and_odd_contents(body, content, thinking):
    answer = read(body)
    assert (answer.message.content, answer.message.thinking) == (content, thinking)
    assert answer.wire == {"role": "assistant", "content": content}


@pytest.mark.parametrize(
    "arguments",
    ['{"a": 1, "b": ', "[1]", "nonsense", '{"a": NaN, "b": 1}', '{"a": 1e999, "b": 1}', '{"a":' * 100_000],
    ids=["cut", "list", "text", "nan", "inf", "deep"],
)
def test_arguments_that_are_no_object_come_back_as_the_parsers_error(arguments):
    answer = read(completion("x", calls=[ADDING, ("add", arguments)]))
    assert answer.message.tool_calls == answer.calls == ()
    assert "tool_calls" not in answer.wire  # a server's template would choke on them in the history
    action = parse_tool_calls(answer.message, (ADD,))
    assert "Tool call 2 was not run" in action.error
    assert not action.tool_calls


@pytest.mark.parametrize(
    "data",
    [
        b"<html>",
        b"[1]",
        b'{"choices": []}',
        b'{"choices": [{"message": {"content": 3}}]}',
        b'{"choices": [{}]}',
        b"[" * 200_000,
    ],
    ids=["html", "list", "empty", "number", "no message", "deep"],
)
def test_garbage_can_be_asked_for_again(data):
    with pytest.raises(AuxError) as caught:
        read_answer(data)
    assert caught.value.retry


@pytest.mark.parametrize("count", [-5, True, 10**400, 1.5, "7", None])
def test_what_is_no_count_of_tokens_was_not_counted(count):
    for usage in ((count, 4), (20, count)):
        answer = read(completion("x", usage=usage))
        assert (answer.context, answer.sampled) == (None, None)
    nan = b'{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": NaN, "completion_tokens": 1}}'
    assert read_answer(nan).context is None


# --- messages to histories -------------------------------------------------------------------------------


def test_each_result_names_its_call():
    talk = Conversation()
    talk.hear([Message("system", "s"), Message("user", "u")])
    talk.say(read(completion("", calls=[ADDING, ADDING])))
    talk.hear([Message("tool", "11"), Message("tool", "12"), Message("user", "and?")])
    assert [(m["role"], m.get("tool_call_id"), m["content"]) for m in talk.messages[2:]] == [
        ("assistant", None, ""),
        ("tool", "id0", "11"),
        ("tool", "id1", "12"),
        ("user", None, "and?"),
    ]
    assert talk.messages[2]["tool_calls"][1]["function"] == {"name": "add", "arguments": ADDING[1]}


@pytest.mark.parametrize(
    ("calls", "heard", "roles"),
    [
        (2, [Message("tool", "one")], ["tool", "tool"]),  # one answer to two calls
        (1, [Message("user", "not run")], ["tool", "user"]),  # an error, said as a user
        (0, [Message("tool", "late")], ["user"]),  # a result that no call waits for
        (1, [Message("tool", "1"), Message("tool", "2")], ["tool", "user"]),
    ],
)
def test_a_history_is_legal_whatever_the_environment_answers(calls, heard, roles):
    talk = Conversation()
    talk.say(read(completion("", calls=[ADDING] * calls)))
    talk.hear(heard)
    assert [message["role"] for message in talk.messages[1:]] == roles
    waiting = {call["id"] for call in talk.messages[0].get("tool_calls", ())}
    assert {m["tool_call_id"] for m in talk.messages if m["role"] == "tool"} == waiting
    contents = [message["content"] for message in talk.messages[1:]]
    assert all(message.content in contents for message in heard)
    assert set(contents) - {message.content for message in heard} <= {ELSEWHERE}


def test_calls_of_an_example_in_the_opening_get_ids():
    example = Message("assistant", "", tool_calls=(ToolCall("add", {"a": 1, "b": 2}),))
    talk = Conversation()
    talk.hear([example, Message("tool", "3"), example, Message("tool", "3"), Message("user", "now you")])
    assert [m.get("tool_call_id") for m in talk.messages] == [None, "example_0", None, "example_1", None]


def test_tools_are_nested_once():
    wrapped = {"type": "function", "function": ADD}
    assert wire_tools([ADD, wrapped]) == [wrapped, wrapped]


# --- a whole episode, and faults -------------------------------------------------------------------------


def endpoint(server, *, timeout_s=5.0, **rules):
    rules = {"retries": 2, "backoff_s": 0.01, **rules}
    backend = EndpointBackend(EndpointConfig(server.url, "tiny", timeout_s=timeout_s))
    return ChatEndpoint(backend, ChatRules(**rules))


def play(server, temperature=0.0, **options):
    """One episode of the tool environment; returns its trajectory."""
    chat = endpoint(server, **options)
    agent = ChatAgent(chat, Sampling(max_tokens=9, temperature=temperature))
    task = SUMS.tasks("dev")[0]
    limits = EpisodeLimits(context=100)
    try:
        return asyncio.run(
            run_talk(Plan(task, 1), 1, spec=SUMS, agent=agent, pool=InlinePool(), limits=limits)
        )
    finally:
        chat.backend.close()


def solver(body, number):
    """Calls the tool, then says what it gave."""
    last = body["messages"][-1]
    return (
        completion(f"It is {last['content']}.") if last["role"] == "tool" else completion("", calls=[ADDING])
    )


def test_an_episode_with_tools(serve):
    server = serve(solver)
    trajectory = play(server)
    assert trajectory.success
    assert trajectory.extra["usage"] == {"context": [20, 20], "sampled": [4, 4]}
    first, second = server.seen
    assert first["tools"] == [{"type": "function", "function": ADD}]
    assert (first["model"], first["max_tokens"], first["temperature"]) == ("tiny", 9, 0.0)
    assert "seed" not in first
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "tool"]
    assert second["messages"][3] == {"role": "tool", "tool_call_id": "id0", "content": "11"}


def test_sampled_rollouts_carry_a_seed_and_extra_fields_win(serve):
    server = serve(solver)
    play(server, temperature=0.7, extra={"max_tokens": None, "max_completion_tokens": 5})
    assert server.seen[0]["temperature"] == 0.7
    assert server.seen[0]["seed"] == server.seen[1]["seed"] > 0
    assert "max_tokens" not in server.seen[0]
    assert server.seen[0]["max_completion_tokens"] == 5


@pytest.mark.parametrize(
    "fault",
    [
        (429, {"Retry-After": "0.05"}, b"slow down"),
        (500, {}, b""),
        (200, {}, b"<html>"),
        (200, {"Content-Length": "5000"}, b'{"choices"'),
        None,
    ],
    ids=["429", "500", "garbage", "cut", "slow"],
)
def test_a_passing_fault_is_asked_again(serve, fault):
    server = serve(lambda body, number: (fault or server.hang) if number == 1 else solver(body, number))
    assert play(server, timeout_s=20.0 if fault else 2.0).success
    assert len(server.seen) == 3


def test_a_lasting_fault_is_the_episodes(serve):
    server = serve(lambda body, number: (500, {}, b"broken"))
    with pytest.raises(EnvFailure, match="HTTP 500: broken") as caught:
        play(server)
    assert caught.value.kind == "endpoint"
    assert len(server.seen) == 3


def test_a_refused_conversation_is_not_asked_again(serve):
    server = serve(lambda body, number: (400, {}, {"error": "content policy"}))
    with pytest.raises(EnvFailure, match="content policy"):
        play(server)
    assert len(server.seen) == 1


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_key_model_or_address_ends_it_all(serve, status):
    with pytest.raises(ConfigError, match="Check base_url, model and the key"):
        play(serve(lambda body, number: (status, {}, b"")))


@pytest.mark.parametrize(
    "message",
    [
        {"error": {"code": "context_length_exceeded", "message": "too long"}},
        {"message": "This model's maximum context length is 4096 tokens."},
        {"error": {"type": "exceed_context_size_error"}},
        {"error": {"message": "prompt is too long: 9 tokens"}},
    ],
)
def test_a_full_context_ends_the_episode_as_ours_does(serve, message):
    server = serve(lambda body, number: (400, {}, message) if number else solver(body, number))
    trajectory = play(server)
    assert trajectory.status is Status.LENGTH
    assert len(trajectory.steps) == 1
    assert not trajectory.success


def test_a_server_that_never_answers_stops_the_evaluation(serve):
    server = serve(solver)
    server.close()
    chat = endpoint(server, retries=0, patience=2)

    async def twice():
        for expected in (EnvFailure, RolloutError):
            with pytest.raises(expected):
                await chat.ask({"messages": []})

    asyncio.run(twice())
    chat.backend.close()


def test_an_answer_starts_the_patience_anew(serve):
    answers = [(500, {}, b""), completion("a"), (500, {}, b"")]
    chat = endpoint(serve(lambda body, number: answers[number]), retries=0, patience=2)

    async def three():
        for _ in range(3):
            try:
                await chat.ask({"messages": []})
            except EnvFailure:
                continue

    asyncio.run(three())
    chat.backend.close()


@pytest.mark.parametrize("after", ["1e9", "\u00b2", "999999999", "-1", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_an_absurd_wait_is_not_waited_for(serve, after):
    def reply(body, number):
        return solver(body, number) if number else (429, {"Retry-After": after}, b"slow down")

    assert play(serve(reply), timeout_s=0.5 if after == "999999999" else 20.0).success
