"""reasoning-gym by name: official scores, partial credit, splits, hostile answers."""

from random import Random

import pytest

from jaxagent.envs import reasoning_gym as rg
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
