"""Single-turn mathematics: what counts as equal, what is no answer, and answers that would hang the run."""

import json
import os
import signal
import time

import pytest

from jaxagent.envs.judge_process import JudgeProcess
from jaxagent.envs.math_answers import MathOptions, generated, last_boxed, parse
from jaxagent.envs.table import find_env
from jaxagent.errors import ConfigError, DataError, EnvFailure
from jaxagent.types import ExecStatus, Message, Task
from tests.envs.contract import check_contract
from tests.envs.needs import package

needs_math = package("math_verify", "pip install 'jaxagent[math]'")


def play(gold: str, text: str, **options):
    """The result of the one step, and the verdict."""
    spec = find_env("math", options)
    env = spec.make()
    env.reset(Task("t", "math", "train", meta={"problem": "?", "answer": gold}))
    result = env.step(spec.parse(Message("assistant", text)))
    return result, env.evaluate()


@needs_math
def test_the_contract():
    spec = find_env("math", {})
    for split in ("train", "test"):
        played = check_contract(spec, spec.tasks(split)[0])
        assert len(played.texts) == 1


@needs_math
@pytest.mark.parametrize(
    ("gold", "given", "right"),
    [
        ("42", "42", True),
        ("42", "42.0", True),
        ("42", "43", False),
        ("1/2", r"\frac{2}{4}", True),
        (r"\frac{1}{2}", "0.5", True),
        ("(1,2)", "(1, 2)", True),
        ("(1,2)", "(2, 1)", False),
        (r"\sqrt{8}", r"2\sqrt{2}", True),
        ("x+1", "1+x", True),
        ("1,000", "1000", True),
        ("42", "I do not know", False),
        ("42", r"\text{forty-two}", False),
        ("42", "__import__('os').system('true')", False),
    ],
)
def test_equal_answers(gold, given, right):
    result, verdict = play(gold, f"So it is \\boxed{{{given}}}.")
    assert (verdict.success, verdict.passed, verdict.total) == (right, int(right), 1)
    assert result.done


@needs_math
@pytest.mark.parametrize(
    ("gold", "given"),
    [
        ("42", "6*7"),
        ("42", r"6 \times 7"),
        ("42", r"x = 6 \cdot 7"),
        ("42", "40+2"),
        ("42", "43-1"),
        ("42", "40 2"),
        ("42", r"\frac{84}{2}"),
        ("42", r"\sqrt{1764}"),
        ("42", r"\binom{42}{1}"),
        ("42", r"\sum_{k=1}^{42} 1"),
        ("42", r"\int_0^{42} 1 dx"),
        ("42", r"\max(41,42)"),
        ("42", r"\operatorname{lcm}(6,7)"),
        ("42", "|-42|"),
        ("5040", "7!"),
        ("1024", "2^{10}"),
    ],
)
def test_writing_the_question_down_is_no_answer(gold, given):
    assert not play(gold, f"\\boxed{{{given}}}")[1].success


@needs_math
@pytest.mark.parametrize(
    ("gold", "given"),
    [
        ("42", "n = 42"),
        ("42", "40 + 2 = 42"),
        ("42", r"42\text{ cm}^2"),
        ("42", r"42\,\mathrm{km/h}"),
        ("42", r"42^\circ"),
        ("42", r"\$42"),
        ("42", r"x=\left(42\right)"),
        ("42", r"4.2\times 10^1"),
        ("0.001", "10^{-3}"),
        ("1000", "1{,}000"),
        ("-1/2", r"-\frac{1}{2}"),
        ("0.5", r"\dfrac12"),
        ("3/2", r"1\frac{1}{2}"),
        (r"2\sqrt{2}", r"\sqrt{8}"),
    ],
)
def test_the_forms_of_a_number_are_answers(gold, given):
    assert play(gold, f"\\boxed{{{given}}}")[1].success


@needs_math
def test_calculations_count_where_that_is_asked_for():
    assert play("42", r"\boxed{6*7}", calculations=True)[1].success


@needs_math
@pytest.mark.parametrize("hostile", ["9**9**9**9", "9^{9^{9^{9}}}", "(10^{10})!", "{" * 400 + "}" * 400])
def test_a_hostile_answer_is_wrong_and_soon_over(hostile):
    start = time.process_time()
    result, verdict = play("1", f"\\boxed{{{hostile}}}", grade_s=1.0)
    assert not verdict.success
    assert result.done
    assert time.process_time() - start < 5
    assert play("1/2", r"\boxed{0.5}")[1].success  # the next answer is judged again


def test_no_box_is_invalid():
    assert parse(MathOptions(), Message("assistant", "42")).error
    assert parse(MathOptions(), Message("assistant", "\\boxed{}")).error
    assert parse(MathOptions(), Message("assistant", "\\boxed{42")).error  # the message was cut
    assert parse(MathOptions(), Message("assistant", "\\boxed{" + "1" * 3000 + "}")).error
    assert parse(MathOptions(bare=True), Message("assistant", " 42 ")).text == "42"


@needs_math
def test_an_invalid_message_ends_the_episode_unsolved():
    result, verdict = play("42", "42")
    assert (result.exec_status, result.done, verdict.success) == (ExecStatus.INVALID, True, False)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{1}", "1"),
        (r"\boxed{1} or \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} and \boxed{2", "1"),
        (r"boxed{1}", None),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
    ],
)
def test_the_last_box(text, content):
    assert last_boxed(text) == content


def test_many_open_boxes_take_no_time():
    start = time.process_time()
    assert last_boxed("\\boxed{" * 50_000) is None
    assert last_boxed("\\boxed{" * 50_000 + "1}") == "1"
    assert time.process_time() - start < 2


def test_generated_problems_are_right_and_in_one_split():
    seen = {
        split: {generated(split, n, 100).problem for n in range(60)} for split in ("train", "dev", "test")
    }
    assert not seen["train"] & seen["dev"]
    assert not seen["train"] & seen["test"]
    assert not seen["dev"] & seen["test"]
    assert generated("train", 0, 100) == generated("train", 0, 100)
    for n in range(20):
        item = generated("test", n, 100)
        first, sign, second = item.problem.removeprefix("What is ").rstrip("?").split()
        wanted = {"+": int(first) + int(second), "-": int(first) - int(second), "*": int(first) * int(second)}
        assert int(item.answer) == wanted[sign]


@needs_math
def test_files(tmp_path):
    path = tmp_path / "aime.jsonl"
    path.write_text(json.dumps({"problem": "1+1?", "answer": 2}) + "\n")
    spec = find_env("math", {"files": {"test": str(path)}})
    assert check_contract(spec, spec.tasks("test")[0]).evaluation.success
    with pytest.raises(ConfigError, match=r"\['test'\]"):
        spec.tasks("train")
    path.write_text('{"problem": "1+1?"}\n')
    with pytest.raises(ConfigError, match="no such file"):
        find_env("math", {"files": {"test": str(tmp_path / "none")}})
    other = tmp_path / "other.jsonl"
    other.write_text('{"problem": "1+1?", "answer": 2}\n{"problem"')
    with pytest.raises(DataError, match=r"other.jsonl:2: not JSON"):
        find_env("math", {"files": {"test": str(other)}})


def double(value):
    if value == "exit":
        os._exit(3)
    if value == "sleep":
        time.sleep(1000)
    if value == "memory":
        return len(bytearray(8 << 30))
    if value == "noise":
        print("noise" * 1000)
    return value * 2


def test_the_judges_child_is_replaced_when_it_is_lost():
    child = JudgeProcess("tests.envs.test_math:double", memory_mb=2048)
    assert child.call([2], seconds=60).value == 4
    assert child.call(["sleep"], seconds=0.2).fault == "hang"
    assert child.call(["noise"], seconds=60).value == "noisenoise"
    assert child._process is not None
    full = child._process
    memory = child.call(["memory"], seconds=60)
    assert (memory.fault, memory.message) == ("raised", "MemoryError: ")
    assert full.wait(60) == 0  # the next answer is not judged in what is left of its memory
    assert child.call([1], seconds=60).value == 2
    assert child._process is not None
    os.kill(child._process.pid, signal.SIGKILL)
    assert child.call([3], seconds=60).value == 6
    assert child.call(["exit"], seconds=60).fault == "died"
    child.close()
    with pytest.raises(EnvFailure, match="no_such_function"):
        JudgeProcess("tests.envs.test_math:no_such_function").call([1], seconds=60)
