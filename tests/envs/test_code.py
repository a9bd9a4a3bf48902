"""Functions against hidden unit tests: verdicts by hand, and every known way of passing without solving."""

import json
import tracemalloc
from random import Random

import pytest

from jaxagent.envs import code_tests
from jaxagent.envs.code_judge import JudgeLimits, run_tests
from jaxagent.envs.code_tests import CodeTests, generated
from jaxagent.envs.table import find_env
from jaxagent.errors import ConfigError, DataError
from jaxagent.rollout.demonstrate import play
from jaxagent.types import Action, ExecStatus, Message, Task
from tests.envs.contract import check_contract

SPEC = find_env("code", {})
LIMITS = JudgeLimits(call_s=2.0, total_s=20.0)
ADD = ("assert add(1, 2) == 3", "assert add(0, 0) == 0", "assert candidate(-4, 2) == -2")


def passed(code: str, tests=ADD, entry_point: str = "add", limits: JudgeLimits = LIMITS) -> list[bool]:
    return list(run_tests(code, tests, entry_point=entry_point, limits=limits).passed)


def test_the_contract():
    played = check_contract(SPEC, SPEC.tasks("train")[0])
    assert (played.evaluation.passed, played.evaluation.total) == (4, 4)


def test_the_fraction_by_hand():
    assert passed("def add(a, b):\n    return a + b") == [True, True, True]
    assert passed("def add(a, b):\n    return abs(a) + b") == [True, True, False]
    assert passed("def add(a, b):\n    return None") == [False, False, False]
    assert passed("def plus(a, b):\n    return a + b") == [False, False, False]
    assert passed("def add(a, b) return") == [False, False, False]


def test_what_a_failing_test_says():
    report = run_tests("def add(a, b):\n    return 1 / a", ADD, entry_point="add", limits=LIMITS)
    assert report.failures == (
        "test 1: AssertionError",
        "test 2: ZeroDivisionError: division by zero",
        "test 3: AssertionError",
    )


VALUES = [
    "(1, 2)",
    "{1, 2}",
    "{(1, 2): [None]}",
    "b'x'",
    "1.5",
    "2j",
    "10**40",
    "-(2**53)",
    "[0, 1, True, 1.0]",
    "frozenset()",
    "True",
    "'é\\n'",
    "-7",
]


@pytest.mark.parametrize("value", VALUES)
def test_plain_values_cross_both_ways_as_they_are(value):
    tests = [f"v = same({value})\nassert v == {value} and type(v) is type({value}), v"]
    assert passed("def same(x):\n    return x", tests, "same") == [True]


def test_floats_that_json_has_no_word_for():
    tests = ["assert f('inf') == float('inf')", "assert f('nan') != f('nan')", "assert f(0.1) == 0.1"]
    assert passed("f = float", tests, "f") == [True] * 3


def test_exceptions_cross_by_name():
    tests = [
        "try:\n    f(0)\n    ok = False\nexcept ValueError as exc:\n    ok = str(exc) == 'low'\nassert ok"
    ]
    assert passed("def f(x):\n    raise ValueError('low')", tests, "f") == [True]
    assert passed("def f(x):\n    raise SystemExit(0)", tests, "f") == [False]
    assert passed("class ValueErro(Exception): pass\ndef f(x):\n    raise ValueErro('low')", tests, "f") == [
        False
    ]


def test_an_exception_that_ends_an_iteration_is_no_pass():
    code = "def even(x):\n    raise StopIteration"
    tests = [
        "assert all(map(even, [2, 4]))",
        "assert list(map(even, [1])) == []",
        "assert not any(map(even, [1]))",
    ]
    assert passed(code, tests, "even") == [False] * 3
    by_hand = "def even(x):\n    apis.judge.answer(raised='StopIteration', message='')\n    return object()"
    assert passed(by_hand, tests, "even") == [False] * 3


def test_a_test_that_never_calls_the_function_is_no_pass():
    forgotten = "def check(candidate):\n    assert candidate(1, 2) == 3"  # HumanEval's, without its call
    report = run_tests("def add(a, b):\n    return 0", [forgotten], entry_point="add", limits=LIMITS)
    assert report.failures == ("test 1: it never calls add: a fault of the test",)


def test_only_the_newest_answer_is_kept():
    tracemalloc.start()
    code = "def f(x):\n    for n in range(24):\n        apis.judge.answer(value=chr(65 + n) * 4_000_000)\n    return x"
    assert passed(code, ["assert f(1) == 1"], "f", JudgeLimits(call_s=20, total_s=25)) == [True]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60_000_000  # all of them would be 96 MB


def test_a_check_function_in_the_manner_of_humaneval():
    check = "def check(candidate):\n    assert candidate([3, 1]) == [1, 3]\ncheck(candidate)"
    assert passed("def order(x):\n    return sorted(x)", [check], "order") == [True]


OS = "os = [c for c in object.__subclasses__() if c.__name__ == '_wrap_close'][0].__init__.__globals__\n"
ATTACKS = {
    "exit at import": "def add(a, b):\n    return 7\nraise SystemExit(0)",
    "exit in the call": "def add(a, b):\n    raise SystemExit(0)",
    "hard exit at import": OS + "def add(a, b):\n    return 3\nos['_exit'](0)",
    "hard exit in the call": OS + "def add(a, b):\n    os['_exit'](0)",
    "always equal": "class Yes:\n    def __eq__(self, other): return True\ndef add(a, b):\n    return Yes()",
    "equal number": (
        "class Yes(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
        "def add(a, b):\n    return Yes(5)"
    ),
    "printed marks": "def add(a, b):\n    print('PASSED\\n3 passed in 0.01s\\nOK')\n    return True",
    "patched builtins": (
        OS + "builtins = os['sys'].modules['builtins']\n"
        "builtins.AssertionError = type('E', (BaseException,), {})\n"
        "def add(a, b):\n    builtins.compile = builtins.exec = lambda *a, **k: None\n    return 0.5"
    ),
    "own judge": "def add(a, b):\n    apis.judge.answer(value=True)\n    return 77",
    "forged message": (
        OS + "import json, struct\n"
        "def send(m):\n    d = json.dumps(m).encode()\n"
        "    for fd in range(3, 20):\n"
        "        try: os['write'](fd, struct.pack('>I', len(d)) + d)\n        except OSError: pass\n"
        "def add(a, b):\n"
        "    for n in range(100): send({'kind': 'result', 'run': n, 'output': '', 'error': '', 'status': 'ok'})\n"
        "    return 99"
    ),
    "malformed answer": "def add(a, b):\n    apis.judge.answer(value={'s': 'evil', 'v': []})",
    "raised by hand": "def add(a, b):\n    apis.judge.answer(raised='SystemExit', message='0')\n    1 / 0",
    "reads the frames": (
        OS + "gc = os['sys'].modules['gc']\ndef add(a, b):\n"
        "    frame = os['sys']._getframe()\n    seen = []\n"
        "    while frame:\n        seen.append(str(frame.f_locals))\n        frame = frame.f_back\n"
        "    text = ' '.join(seen) + str([o for o in gc.get_objects() if type(o) in (list, dict, tuple)])\n"
        "    return int('0123'[3]) if chr(61) * 2 + ' 3' in text else 55"
    ),
    "reads the environment": OS
    + "def add(a, b):\n    return os['sys'].modules['io'].open('/proc/self/environ').read()",
    "opens a socket": "def add(a, b):\n    return __import__('socket').socket()",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_passing_without_solving_does_not_work(name):
    assert passed(ATTACKS[name]) == [False, False, False]


def test_a_killed_interpreter_fails_its_own_test_only():
    code = OS + "def add(a, b):\n    if a == 0:\n        os['_exit'](1)\n    return a + b"
    assert passed(code) == [True, False, True]


@pytest.mark.parametrize("body", ["while True: pass", "x = [0] * 10**10", "return 9**9**9**9"])
def test_what_runs_away_is_stopped(body):
    code = f"def add(a, b):\n    if a:\n        {body}\n    return 0"
    limits = JudgeLimits(call_s=0.3, total_s=20.0)
    assert passed(code, ADD, limits=limits) == [False, True, False]


def test_all_tests_together_have_a_limit():
    limits = JudgeLimits(call_s=0.5, total_s=0.6)
    report = run_tests("def f(x):\n    while True: pass", ["f(1)"] * 9, entry_point="f", limits=limits)
    assert report.failures[-1] == "test 9: out of time"


def test_the_code_sees_neither_tests_nor_solution_before_it_is_called():
    code = (
        OS + "gc = os['sys'].modules['gc']\n"
        "seen = str([o for o in gc.get_objects() if type(o) in (list, dict, tuple)])\n"
        "def add(a, b):\n    return chr(97) + 'ssert add(1' in seen"
    )
    assert passed(code, ["assert add(1, 2) is False"]) == [True]


def step(env: CodeTests, text: str):
    return env.step(SPEC.parse(Message("assistant", text)))


def test_a_single_turn():
    task = SPEC.tasks("test")[1]
    env = SPEC.make()
    first = env.reset(task)
    problem = generated(65)
    assert first.observation == problem.prompt
    assert not any(test in first.observation for test in problem.tests)
    done = step(env, f"Here it is:\n```python\n{problem.solution}\n```")
    assert (done.done, done.exec_status) == (True, ExecStatus.OK)
    assert env.evaluate().success


def test_no_code_is_invalid_and_scores_nothing():
    env = SPEC.make()
    env.reset(SPEC.tasks("train")[0])
    assert step(env, "I refuse.").exec_status is ExecStatus.INVALID
    verdict = env.evaluate()
    assert (verdict.passed, verdict.total, verdict.failures) == (0, 4, ("no code was handed in",))


def test_several_turns_show_the_example_tests_only():
    spec = find_env("code", {"turns": 3, "limits": {"call_s": 2.0}})
    task = spec.tasks("train")[0]
    problem = generated(0)
    env = spec.make()
    env.reset(task)
    wrong = step(env, f"```python\ndef {problem.entry_point}(x):\n    return 10 ** 6\n```")
    assert wrong.exec_status is ExecStatus.RUNTIME_ERROR
    assert wrong.observation.startswith("0 of 1 example tests passed.\ntest 1: AssertionError")
    assert not any(test in wrong.observation for test in problem.tests)
    broken = step(env, "```python\ndef f(\n```")
    assert broken.exec_status is ExecStatus.SYNTAX_ERROR
    right = step(env, f"```python\n{problem.solution}\n```")
    assert right.done
    assert env.evaluate().success


def test_files(tmp_path):
    line = {"prompt": "Write add(a, b).", "tests": list(ADD), "entry_point": "add"}
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(line) + "\n\n" + json.dumps({**line, "task_id": "mine"}) + "\n")
    spec = find_env("code", {"files": {"train": str(path)}})
    assert [task.task_id for task in spec.tasks("train")] == ["code/train/0", "mine"]
    assert spec.expert is None
    with pytest.raises(ConfigError, match=r"\['train'\]"):
        spec.tasks("test")
    with pytest.raises(ConfigError, match="public_tests"):
        find_env("code", {"files": {"train": str(path)}, "turns": 2})
    with pytest.raises(ConfigError, match="there is no such file"):
        find_env("code", {"files": {"train": str(tmp_path / "none.jsonl")}})
    bad = tmp_path / "bad.jsonl"
    for name, why in (
        ("a b", "no function name"),
        ("class", "no function name"),
        ("apis", "uses the name 'apis'"),
    ):
        bad.write_text(json.dumps({**line, "entry_point": name}))
        with pytest.raises(DataError, match=rf"bad.jsonl:1: .*{why}"):
            find_env("code", {"files": {"train": str(bad), name: str(bad)}})
        code_tests._read.cache_clear()


def test_the_expert_solves_and_a_wrong_one_does_not():
    for task in SPEC.tasks("test")[:4]:
        assert play(SPEC, task, rng=Random(0)).evaluation.success
        assert play(SPEC, task, rng=Random(0), sloppiness=1.0).evaluation.passed == 0


def test_snapshots_keep_the_code():
    env = SPEC.make()
    task: Task = SPEC.tasks("train")[0]
    env.reset(task)
    env.step(Action("def f0(x):\n    return x"))
    again = SPEC.make()
    again.reset(task)
    again.restore(env.snapshot())
    assert again.evaluate() == env.evaluate()
