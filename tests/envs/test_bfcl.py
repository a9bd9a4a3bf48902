"""BFCL multi-turn: protocol, whitelisted execution, no shared state, the benchmark's verdict."""

import importlib
import json
import pickle
from dataclasses import replace
from random import Random

import pytest

from jaxagent.envs.bfcl import data
from jaxagent.envs.bfcl.backend import Backend
from jaxagent.envs.bfcl.calls import parse_hermes, parse_python, python_call, read_python_call, write_python
from jaxagent.envs.bfcl.env import NEW_FUNCTIONS, STEPS, BfclEnv
from jaxagent.envs.bfcl.spec import BfclOptions, bfcl_spec, metrics
from jaxagent.envs.bfcl.tools import offered, schema, tool
from jaxagent.envs.table import find_env
from jaxagent.errors import ConfigError
from jaxagent.rollout.demonstrate import play
from jaxagent.types import (
    Action,
    Evaluation,
    ExecStatus,
    Message,
    Prompt,
    Status,
    Task,
    ToolCall,
    Trajectory,
)
from tests.envs.contract import check_contract
from tests.envs.needs import package

pytestmark = [package("bfcl_eval", data.INSTALL), package("mpmath", data.INSTALL)]
PLAIN = Action(text="Done.")


def spec(**options):
    return find_env("bfcl", options)


def task(name: str) -> Task:
    return Task(name, "bfcl", "all", type=name.removeprefix("multi_turn_").rpartition("_")[0])


def opened(name: str, **options) -> BfclEnv:
    env = BfclEnv(**options)
    env.reset(task(name))
    return env


def calls(*pairs) -> Action:
    return Action(tool_calls=tuple(ToolCall(name, arguments) for name, arguments in pairs))


def hermes(name: str, **arguments) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize("category", data.CATEGORIES)
@pytest.mark.parametrize("style", ["hermes", "python"])
def test_contract(category, style):
    check_contract(spec(format=style), task(f"multi_turn_{category}_0"))


@pytest.mark.parametrize("category", data.CATEGORIES)
def test_oracle_and_silence_on_a_sample(category):
    chosen = spec()
    for found in chosen.tasks(category)[::10]:
        assert play(chosen, found, rng=Random(0)).evaluation.success, found.task_id
        assert not silent(found).success


def silent(found: Task) -> Evaluation:
    env = BfclEnv()
    env.reset(found)
    while not env.step(PLAIN).done:
        pass
    return env.evaluate()


@pytest.mark.slow
@pytest.mark.parametrize("style", ["hermes", "python"])
def test_oracle_800_silence_0(style):
    chosen = spec(format=style)
    tasks = chosen.tasks("all")
    assert len(tasks) == 800
    assert sum(play(chosen, found, rng=Random(0)).evaluation.success for found in tasks) == 800
    assert sum(silent(found).success for found in tasks) == 0


# --- the verdict ---------------------------------------------------------------------------------------------


def official(found: Task, messages) -> tuple[bool, bool]:
    """The package's two checkers on what the assistant called; the package's shared instances are dropped before."""
    mu = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils")
    checker = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")
    for name in [name for name in vars(mu) if name.endswith("_instance")]:
        del vars(mu)[name]
    name = f"BFCL_v4_multi_turn_{found.type}.json"
    entry = next(x for x in data._lines(data._root() / name) if x["id"] == found.task_id)
    lines = data._lines(data._root() / "possible_answer" / name)
    truth = next(line["ground_truth"] for line in lines if line["id"] == found.task_id)
    said = [[[python_call(call) for call in message] for message in turn] for turn in messages]
    return (
        checker.multi_turn_checker(said, truth, entry, found.type, "tested")["valid"],
        checker.multi_turn_irrelevance_checker(said, truth)["valid"],
    )


def perturbed(expected, rng: Random):
    """A turn's calls with one change: none, dropped, shuffled, added, another value, an unknown function, doubled."""
    turn, kind = list(expected), rng.randrange(8)
    if kind == 0 and turn:
        turn.pop(rng.randrange(len(turn)))
    elif kind == 1:
        rng.shuffle(turn)
    elif kind == 2:
        turn.append(ToolCall(rng.choice(["ls", "pwd", "get_user_id"]), {}))
    elif kind == 3 and turn and turn[-1].arguments:
        name = rng.choice(list(turn[-1].arguments))
        turn[-1] = replace(turn[-1], arguments={**turn[-1].arguments, name: rng.choice(["zzz", 7, None])})
    elif kind == 4:
        turn.append(ToolCall("nothing", {"a": 1}))
    elif kind == 5 and turn:
        turn.append(rng.choice(turn))
    return [turn] if turn else []


def agrees_with_the_package(tasks, seed: int) -> list[bool]:
    """Perturbed play of every task gets the package's verdicts; returns them."""
    rng, verdicts = Random(seed), []
    for found in tasks:
        messages = [perturbed(expected, rng) for expected in data.find(found).expected]
        env = BfclEnv()
        env.reset(found)
        for turn in messages:
            for message in turn:
                env.step(Action(tool_calls=tuple(message)))
            env.step(PLAIN)
        verdict = env.evaluate()
        assert (verdict.success, verdict.info["irrelevance"]) == official(found, messages), found.task_id
        verdicts.append(verdict.success)
    return verdicts


def test_verdicts_are_the_packages_on_a_sample():
    tasks = [found for category in data.CATEGORIES[:3] for found in spec().tasks(category)[::20]]
    assert 0 < sum(agrees_with_the_package(tasks, 0)) < len(tasks)


@pytest.mark.slow
def test_verdicts_are_the_packages():
    for category in data.CATEGORIES:
        agrees_with_the_package(spec().tasks(category), 1)


def test_turns_are_judged_one_by_one():
    env, entry = opened("multi_turn_base_0"), data.find(task("multi_turn_base_0"))
    assert [call.name for call in entry.expected[1]] == ["cd", "grep"]
    for turn, expected in enumerate(entry.expected):
        env.step(Action(tool_calls=expected[:1] if turn == 1 else expected))  # no grep, which only reads
        env.step(PLAIN)
    verdict = env.evaluate()
    assert verdict.info["turns"] == [True, False, True, True]
    assert (verdict.success, verdict.passed, verdict.total) == (False, 3, 4)
    assert verdict.failures[0].startswith('turn 1: results are missing: {"matching_lines"')


def test_calls_where_nothing_can_be_done_are_reported_but_not_punished():
    name = "multi_turn_miss_param_0"
    env, entry = opened(name), data.find(task(name))
    assert [len(expected) == 0 for expected in entry.expected] == [False, False, False, True, False]
    for expected in entry.expected:
        env.step(Action(tool_calls=expected) if expected else calls(("pwd", {})))
        env.step(PLAIN)
    verdict = env.evaluate()
    assert verdict.success
    assert not verdict.info["irrelevance"]


# --- the protocol --------------------------------------------------------------------------------------------


def test_results_and_the_next_turn():
    env = BfclEnv()
    first = env.reset(task("multi_turn_base_0"))
    assert first.observation.startswith("Move 'final_report.pdf'")
    result = env.step(calls(("cd", {"folder": "document"}), ("pwd", {})))
    assert [message.role for message in result.messages] == ["tool", "tool"]
    assert result.messages[0].content == '{"current_working_directory": "document"}'
    assert result.exec_status is ExecStatus.OK
    assert result.anchor != first.anchor
    after = env.step(PLAIN)
    assert after.messages == (Message("user", after.observation),)
    assert after.observation.startswith("Perform a detailed search")


def test_results_in_the_python_format():
    env = opened("multi_turn_base_0", format="python")
    result = env.step(calls(("cd", {"folder": "document"})))
    told = [
        {
            "role": "tool",
            "name": "cd(folder='document')",
            "content": '{"current_working_directory": "document"}',
        }
    ]
    assert result.messages == (Message("user", repr(told)),)


def test_unreadable_message_ends_the_turn():
    env = opened("multi_turn_base_0")
    result = env.step(parse_hermes(Message("assistant", "<tool_call>\n{oops\n</tool_call>")))
    assert result.exec_status is ExecStatus.INVALID
    assert result.messages[0].content.startswith("Perform a detailed search")


def test_more_than_twenty_messages_in_a_turn_end_the_entry():
    env = opened("multi_turn_base_0")
    results = [env.step(calls(("pwd", {}))) for _ in range(STEPS + 1)]
    assert [result.done for result in results] == [False] * STEPS + [True]
    verdict = env.evaluate()
    assert not verdict.success
    assert verdict.info["forced"]
    assert verdict.failures[-1] == "turn 3: not reached: 20 steps in one turn"


def test_an_episode_that_was_cut_is_wrong_unless_only_the_last_plain_message_is_missing():
    entry = data.find(task("multi_turn_base_0"))
    for cut, success in ((2, False), (4, True)):
        env = opened("multi_turn_base_0")
        for turn, expected in enumerate(entry.expected[:cut]):
            if turn:
                env.step(PLAIN)
            env.step(Action(tool_calls=expected))
        assert env.evaluate().success is success


def test_withheld_functions_come_with_their_turn():
    name = "multi_turn_miss_func_0"
    entry = data.find(task(name))
    assert entry.withheld == {3: ("sort",)}
    chosen = spec()
    first = chosen.make().reset(task(name))
    names = [entry["function"]["name"] for entry in chosen.prompt(task(name), first).tools]
    assert "sort" not in names
    assert "grep" in names
    env = opened(name)
    said = [env.step(PLAIN).observation for _ in range(3)][-1]
    assert said.endswith(NEW_FUNCTIONS)
    assert json.loads(said.splitlines()[0])["function"]["name"] == "sort"
    assert "sort" in {
        doc["name"] for doc in offered(data.find(task("multi_turn_base_0")), drop_excluded=False)
    }


def test_excluded_functions_are_offered_as_the_package_does_or_dropped():
    entry = data.find(task("multi_turn_base_0"))
    assert entry.excluded == ("cp",)
    assert "cp" in [doc["name"] for doc in offered(entry, drop_excluded=False)]
    assert "cp" not in [doc["name"] for doc in offered(entry, drop_excluded=True)]


# --- execution -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("__class__", {}),
        ("_load_scenario", {"scenario": {}}),
        ("__import__('os').system", {"command": "true"}),
        ("post_tweet.__globals__", {}),
        ("eval", {"source": "1"}),
        ("logarithm", {"value": 1, "base": 2, "precision": 1}),  # of a class that the entry does not involve
        ("cd", {"folder": "document", "nothing": 1}),
        ("touch", {"file_name": 5}),
    ],
)
def test_what_cannot_be_called_is_an_error_that_the_policy_sees(name, arguments):
    env = opened("multi_turn_base_0")
    result = env.step(calls((name, arguments)))
    assert result.exec_status is ExecStatus.RUNTIME_ERROR
    assert result.observation.startswith("Error during execution: ")


def test_text_in_arguments_is_never_evaluated():
    env = opened("multi_turn_base_0")
    text = "__import__('os').abort() ls() 'quoted\" {x}"
    env.step(calls(("touch", {"file_name": "f.txt"}), ("echo", {"content": text, "file_name": "f.txt"})))
    assert json.loads(env.step(calls(("cat", {"file_name": "f.txt"}))).observation) == {"file_content": text}


def test_arithmetic_without_end_is_refused():
    name = next(found for found in data.entries("base") if "MathAPI" in data.entries("base")[found].classes)
    backend = Backend(data.entries("base")[name])
    for call in (
        ToolCall("power", {"base": 10**30, "exponent": 10**30}),
        ToolCall("logarithm", {"value": 2, "base": 3, "precision": 10**12}),
    ):
        assert "too large" in backend.call(call)
    assert backend.call(ToolCall("power", {"base": 2, "exponent": 3})) == '{"result": 8}'


def test_interleaved_episodes_share_nothing():
    """Two of one entry, and a third of another entry between their steps."""
    one, two, other = (opened(f"multi_turn_base_{number}") for number in (0, 0, 1))
    one.step(calls(("cd", {"folder": "document"}), ("mkdir", {"dir_name": "temp"})))
    assert json.loads(two.step(calls(("ls", {}))).observation) == {
        "current_directory_content": ["document", "archive"]
    }
    other.step(calls(("mkdir", {"dir_name": "mine"})))
    assert "temp" in one.step(calls(("ls", {}))).observation
    assert one.play.truth.key() == two.play.truth.key()
    utils = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils")
    before = [name for name in vars(utils) if name.endswith("_instance")]
    play(spec(), task("multi_turn_base_0"), rng=Random(0))
    assert [name for name in vars(utils) if name.endswith("_instance")] == before


def test_long_scenarios_do_not_spend_the_packages_own_cards():
    """The package's long scenarios put dictionaries of a module into every instance; booking takes money off them."""
    found = next(e for e in data.entries("long_context").values() if "TravelAPI" in e.classes)
    module = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.func_source_code.long_context")
    one, two = Backend(found), Backend(found)
    card = next(iter(module.CREDIT_CARD_EXTENSION))
    before = module.CREDIT_CARD_EXTENSION[card]["balance"]
    one.instances["TravelAPI"].credit_card_list[card]["balance"] -= 1
    assert module.CREDIT_CARD_EXTENSION[card]["balance"] == before
    assert two.instances["TravelAPI"].credit_card_list[card]["balance"] == before


def test_arguments_are_copied_into_the_tools():
    """`mention` appends to the list that `post_tweet` was given; the ground truth's own list must not grow."""
    name = "multi_turn_base_147"
    before = repr(data.find(task(name)).expected)
    assert play(spec(), task(name), rng=Random(0)).evaluation.success
    assert repr(data.find(task(name)).expected) == before


def test_snapshot_goes_to_another_process():
    env = opened("multi_turn_long_context_0")
    env.step(calls(("cd", {"folder": "document"})))
    again = opened("multi_turn_long_context_0")
    again.restore(env.snapshot())
    assert again.play.model.key() == env.play.model.key()
    assert isinstance(pickle.dumps(spec().make), bytes)


# --- messages, tools, splits ---------------------------------------------------------------------------------


def test_hermes_messages():
    assert parse_hermes(Message("assistant", hermes("cd", folder="x"))).tool_calls == (
        ToolCall("cd", {"folder": "x"}),
    )
    assert parse_hermes(Message("assistant", "All done.")).text == "All done."
    assert parse_hermes(Message("assistant", "")).error
    assert parse_hermes(Message("assistant", "<tool_call>{}")).error
    assert "too large" in parse_hermes(Message("assistant", hermes("f", a=1).replace("1", "1e999"))).error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[cd(folder='x'), ls()]", (ToolCall("cd", {"folder": "x"}), ToolCall("ls", {}))),
        ("cd(folder='x')", (ToolCall("cd", {"folder": "x"}),)),
        (
            "```python\n[f(a=[1, -2.5], b={'k': None})]\n```",
            (ToolCall("f", {"a": [1, -2.5], "b": {"k": None}}),),
        ),
        ("[f('dropped', b=True)]", (ToolCall("f", {"b": True}),)),
        ("[a.b(c=1)]", (ToolCall("a.b", {"c": 1}),)),
    ],
)
def test_python_messages(text, expected):
    assert parse_python(Message("assistant", text)).tool_calls == expected


@pytest.mark.parametrize(
    "text", ["[f(a=g())]", "[f(a=open('x').read())]", "[f(**x)]", "[f(a=b)]", "[1]", "[f(a=1e999)]"]
)
def test_python_messages_hold_literals_only(text):
    assert parse_python(Message("assistant", text)).error


@pytest.mark.parametrize("text", ["I have moved the file.", "Sure (done).", "", "[]"])
def test_plain_python_messages(text):
    assert not parse_python(Message("assistant", text)).tool_calls


def test_calls_survive_writing():
    call = ToolCall("f", {"a": "it's", "b": [1, {"c": None}], "d": -1.5})
    assert parse_python(Message("assistant", write_python([call]))).tool_calls == (call,)
    assert read_python_call("cd('x', deep=True)", {"cd": ["folder", "deep"]}) == ToolCall(
        "cd", {"folder": "x", "deep": True}
    )


def test_tools_are_json_schema():
    converted = schema(
        {
            "type": "dict",
            "properties": {"type": {"type": "float"}, "x": {"type": "array", "items": {"type": "any"}}},
            "required": ["x"],
        }
    )
    assert converted == {
        "type": "object",
        "properties": {"type": {"type": "number"}, "x": {"type": "array", "items": {}}},
        "required": ["x"],
    }
    for class_name in data.DOCS:
        for doc in data.functions(class_name).values():
            text = json.dumps(tool(doc))
            assert not any(f'"type": "{kind}"' in text for kind in ("dict", "float", "any"))


def test_splits():
    chosen = spec()
    train, test = ({found.task_id for found in chosen.tasks(split)} for split in data.HALVES)
    assert (len(train), len(test)) == (100, 100)
    assert not train & test
    assert train | test == {found.task_id for found in chosen.tasks("base")}
    assert {found.task_id for found in spec(split_seed=1).tasks("train")} != train
    assert {found.scenario for found in chosen.tasks("miss_func")} == {
        found.scenario for found in chosen.tasks("base")
    }
    with pytest.raises(ConfigError, match=r"no split 'dev'.*train, test, base"):
        chosen.tasks("dev")


def test_prompt_of_the_python_format_carries_the_functions():
    chosen = spec(format="python", describe="signatures")
    found = task("multi_turn_base_0")
    prompt = chosen.prompt(found, chosen.make().reset(found))
    assert prompt.tools == ()
    assert [message.role for message in prompt.messages] == ["system", "user"]
    assert "\ngrep(file_name: string, pattern: string)\n" in prompt.messages[0].content


def test_a_sloppy_expert_fails_sometimes():
    chosen = spec()
    won = [
        play(chosen, found, rng=Random(found.task_id), sloppiness=0.2).evaluation.success
        for found in chosen.tasks("base")[:20]
    ]
    assert 0 < sum(won) < len(won)


def test_metrics_by_category_and_their_unweighted_mean():
    def ended(name: str, success: bool, rollout: int = 0) -> Trajectory:
        verdict = Evaluation(success, 1, 1, info={"irrelevance": True, "forced": not success})
        return Trajectory(name, task(name), rollout, Status.DONE, Prompt(()), (), (), verdict)

    some = [
        ended("multi_turn_base_0", True),
        ended("multi_turn_base_0", False, 1),
        ended("multi_turn_base_1", True),
        ended("multi_turn_miss_func_0", True),
        ended("multi_turn_miss_param_0", False),
    ]
    found = metrics(some)
    assert found["multi_turn_base"] == pytest.approx(75)  # (1/2 + 1) / 2
    assert "multi_turn_overall" not in found
    found = metrics([*some, ended("multi_turn_long_context_0", True)])
    assert found["multi_turn_overall"] == pytest.approx((75 + 100 + 0 + 100) / 4)
    assert found["forced"] == pytest.approx(2 / 6)
    assert metrics([]) == {}


def test_missing_package_is_a_config_error(monkeypatch):
    def gone(name: str):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("jaxagent.envs.entry.importlib.import_module", gone)
    with pytest.raises(ConfigError, match="pip install --no-deps bfcl-eval"):
        bfcl_spec(BfclOptions())
