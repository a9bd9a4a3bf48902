"""reasoning-gym by name: official scores, partial credit, splits, hostile answers."""

import re
from random import Random

import pytest

from jaxagent.envs import reasoning_gym as rg
from jaxagent.envs.judge_process import JudgeProcess
from jaxagent.envs.reasoning_guard import Unreadable, evaluate
from jaxagent.envs.reasoning_gym import ITEMS, item
from jaxagent.envs.table import find_env
from jaxagent.errors import ConfigError
from jaxagent.rollout.demonstrate import play
from jaxagent.types import ExecStatus, Message
from tests.envs.contract import check_contract
from tests.envs.needs import package

pytestmark = package("reasoning_gym", "pip install 'jaxagent[reasoning]'")
FEW = {"train": 5, "test": 5}


def spec(**datasets):
    return find_env("reasoning_gym", {"datasets": datasets, "tasks": FEW})


def answered(env_spec, task, text):
    env = env_spec.make()
    env.reset(task)
    result = env.step(env_spec.parse(Message("assistant", text)))
    return result, env.evaluate()


def test_the_contract_and_the_order_of_tasks():
    env_spec = spec(chain_sum={"max_terms": 3}, countdown={})
    tasks = env_spec.tasks("train")
    assert [task.type for task in tasks[:4]] == ["chain_sum", "countdown"] * 2
    for task in tasks[:2]:
        played = check_contract(env_spec, task)
        assert (played.evaluation.passed, played.evaluation.total) == (100, 100)


def test_the_score_is_the_packages_own():
    import reasoning_gym

    env_spec = spec(letter_counting={})
    task = env_spec.tasks("test")[3]
    dataset = reasoning_gym.create_dataset("letter_counting", seed=20_000_000, size=5)
    item = dataset[3]
    assert rg.item(task) == {"question": item["question"], "answer": item["answer"]}
    for text in (item["answer"], "999", "words"):
        _, verdict = answered(env_spec, task, f"<answer>{text}</answer>")
        assert verdict.info["score"] == dataset.score_answer(text, item)


def test_splits_share_no_item():
    env_spec = spec(countdown={})
    questions = {split: {rg.item(task)["question"] for task in env_spec.tasks(split)} for split in FEW}
    assert not questions["train"] & questions["test"]


def test_partial_credit_is_in_hundredths():
    env = rg.ReasoningGym(rg.ReasoningOptions(datasets={"x": {}}))
    env._score, env._given = 0.37, "x"
    verdict = env.evaluate()
    assert (verdict.success, verdict.passed, verdict.total) == (False, 37, 100)
    assert verdict.info == {"score": 0.37, "answer": "x"}
    env._score = 0.995
    assert (env.evaluate().success, env.evaluate().passed) == (True, 100)


@pytest.mark.parametrize("text", ["", "42", "<answer>42", "<answer>" + "1" * 9000 + "</answer>"])
def test_what_is_no_answer(text):
    result, verdict = answered(spec(chain_sum={}), spec(chain_sum={}).tasks("train")[0], text)
    assert (result.exec_status, result.done) == (ExecStatus.INVALID, True)
    assert verdict.passed == 0


def test_an_answer_that_hangs_the_scorer_is_worth_nothing():
    env_spec = find_env("reasoning_gym", {"datasets": {"countdown": {}}, "tasks": FEW, "score_s": 2.0})
    task = env_spec.tasks("train")[0]
    _, verdict = answered(env_spec, task, "<answer>9**9**9**9</answer>")
    assert verdict.passed < 100
    assert play(env_spec, task, rng=Random(0)).evaluation.success  # the next answer is scored again


def test_options_are_checked_before_the_run():
    with pytest.raises(ConfigError, match="no_such_puzzle"):
        spec(no_such_puzzle={})
    with pytest.raises(ConfigError, match=r"chain_sum.*max_term"):
        spec(chain_sum={"max_term": 3})
    with pytest.raises(ConfigError, match="no split 'valid'"):
        find_env("reasoning_gym", {"datasets": {"chain_sum": {}}, "tasks": {"valid": 3}})
    with pytest.raises(ConfigError, match="datasets"):
        find_env("reasoning_gym", {"datasets": {}})


@pytest.mark.parametrize(
    "text", ["open('{file}', 'w')", "[open('{file}', 'w')]", "exec(chr(49)) or open('{file}', 'w')"]
)
def test_an_answer_is_never_run_as_python(text, tmp_path):
    file = tmp_path / "written"
    names = (
        "countdown",
        "puzzle24",
        "n_queens",
        "spiral_matrix",
        "string_insertion",
        "polynomial_multiplication",
    )
    for name in (*names, "simple_integration"):
        env_spec = spec(**{name: {}})
        _, verdict = answered(
            env_spec, env_spec.tasks("train")[0], f"<answer>{text.format(file=file)}</answer>"
        )
        assert verdict.passed <= 1, name
    assert not file.exists()


def test_an_answer_that_is_the_question_is_worth_nothing():
    env_spec = spec(countdown={}, simple_integration={})
    for task in env_spec.tasks("train")[:2]:
        if task.type == "countdown":
            text = "(66+34+98+54+6)*(x-x)" + "+x/x" * 164
            assert "Calculate 164 using all of these numbers: 66, 34, 98, 54, 6" in item(task)["question"]
        else:
            integrand = re.search(r"∫ (.*) dx", item(task)["question"])
            assert integrand is not None, item(task)["question"]
            text = f"Integral({integrand[1]}, X)"
        assert answered(env_spec, task, f"<answer>{text}</answer>")[1].passed <= 1


def test_lists_and_formulas_are_still_read():
    assert evaluate("[[1, -2], ('a', 3.5)]") == [[1, -2], ("a", 3.5)]
    assert evaluate("(0x12 + 3) << 1") == 42
    for source in ("f(1)", "().__class__", "[x for x in (1,)]", "x", "lambda: 1"):
        with pytest.raises(Unreadable):
            evaluate(source)


def test_an_item_does_not_depend_on_the_process():
    """Some generators iterate over sets of text, whose order a process draws at its start."""
    task = spec(isomorphic_strings={}).tasks("train")[0]
    meta = task.meta
    first, second = JudgeProcess(ITEMS), JudgeProcess(ITEMS)
    asked = (meta["dataset"], meta["config"], 3, None)
    assert first.call(asked, seconds=120).value == second.call(asked, seconds=120).value
    first.close()
    second.close()
