"""The environment through the real sandbox: message texts, statuses, end of the episode, anchors."""

import json

import pytest

from jaxagent.envs.sandbox import Sandbox
from jaxagent.envs.world.env import NO_CODE, WorldEnv
from jaxagent.envs.world.inline import InlineSandbox
from jaxagent.envs.world.tasks import build, tasks
from jaxagent.types import Action, ExecStatus
from tests.envs.world.worlds import one_task, play


@pytest.fixture
def full():
    env = WorldEnv()
    env.reset(one_task("full", "birthday"))
    yield env
    env.close()


def test_texts_of_the_full_level(full):
    def step(code: str):
        return full.step(Action(text=code))

    assert step("x = 1").observation == "Execution successful."
    assert step("print(x)").observation == "1"
    assert step("print({'a': 1})").observation == '{"a": 1}'
    error = step("y = 2\nprint(1/0)")
    assert error.exec_status == ExecStatus.RUNTIME_ERROR
    lines = [line for line in error.observation.splitlines() if set(line.strip()) - set("~^")]  # no markers
    assert lines == [
        "Execution failed. Traceback:",
        '  File "<python-input>", line 2, in <module>',
        "    print(1/0)",
        "ZeroDivisionError: division by zero",
    ]
    error = step("for")
    assert error.exec_status == ExecStatus.SYNTAX_ERROR
    assert error.observation.startswith("Execution failed. Traceback:\nSyntax error in line:\nfor\nMessage: ")
    error = step("apis.notes.search_notes()")
    assert error.exec_status == ExecStatus.RUNTIME_ERROR
    message = {
        "message": "You are either not authorized to access this notes API endpoint or your access token is "
        "missing, invalid or expired."
    }
    assert error.observation.endswith(f"Exception: Response status code is 401:\n{json.dumps(message)}")
    assert not error.done


def test_a_message_without_code_is_an_observation(full):
    result = full.step(Action(error="no block found"))
    assert (result.observation, result.exec_status, result.done) == (
        "no block found",
        ExecStatus.INVALID,
        False,
    )
    result = full.step(Action(text="  \n"))
    assert (result.observation, result.exec_status) == (NO_CODE, ExecStatus.INVALID)


def test_texts_of_the_easy_level_are_short():
    env = WorldEnv()
    env.reset(one_task("easy", "pay"))
    texts = [
        env.step(Action(text=code)).observation
        for code in (
            "x = 1",
            "apis.bank.balance()",
            'apis.bank.login(pw="guess")',
            "apis.bank.login(key=1)",
            "apis.bank.transfer()",
            "print(y)",
            'apis.book.show(name="nobody")',
            "for",
        )
    ]
    env.close()
    assert texts == [
        "ok",
        "ApiError: 401 login first",
        "ApiError: 401 wrong pw",
        "ApiError: 422 login takes pw",
        "ApiError: 404 no api; bank has login, balance, pay, log",
        "NameError: name 'y' is not defined",
        "ApiError: 404 no nobody",
        "SyntaxError: invalid syntax",
    ]


def test_complete_task_ends_the_episode_and_is_judged(full):
    task = one_task("full", "birthday")
    wrong = full.step(Action(text='apis.supervisor.complete_task(answer="1970-01-01")'))
    assert wrong.done
    verdict = full.evaluate()
    assert (verdict.success, verdict.passed, verdict.total) == (False, 2, 3)
    env = WorldEnv()
    env.reset(task)
    answer = build(task)[1].answer
    assert env.step(Action(text=f"apis.supervisor.complete_task(answer={answer!r})")).done
    assert env.evaluate().success
    env.close()


@pytest.mark.parametrize(
    "code",
    [
        "apis.supervisor.complete_task(answer={'a': [1, {'b': None}]})",
        "apis.supervisor.complete_task(answer=float('nan'))",
        "apis.supervisor.complete_task(answer='x' * 10**6)",
        "apis.supervisor.complete_task(answer=[[1], {2: 3}, None])",
        "apis.supervisor.complete_task(1)",
        "apis.supervisor.complete_task(status='perfect')",
        "apis.supervisor.__class__",
        "apis.world.tables",
        "apis.supervisor.complete_task(world=1)",
        "import sys; sys.exit()",
        "raise KeyboardInterrupt",
    ],
)
def test_odd_agents_get_a_verdict(full, code):
    result = full.step(Action(text=code))
    assert result.observation
    verdict = full.evaluate()
    assert not verdict.success
    assert verdict.total == 3


def test_solution_and_evaluator_are_out_of_the_agents_reach(full):
    code = (
        "import gc\nnames = sorted({type(o).__module__ for o in gc.get_objects()})\n"
        "print([n for n in names if n and 'jaxagent' in n])"
    )
    result = full.step(Action(text=code))
    assert result.exec_status == ExecStatus.RUNTIME_ERROR or result.observation == "[]"


def test_inline_runner_and_sandbox_agree():
    codes = [
        "x = apis.supervisor.show_profile()",
        "print(x)",
        "print([x['email']] * 9)",
        "print(len(x), x['email'])",
        "apis.notes.search_notes()",
        "apis.phone.login(username=1)",
        "def f():\n    return apis.nothing.here()\nf()",
        "for",
        "print('')",
        "",
        "undefined",
    ]
    for level in ("full", "easy"):
        task = one_task(level, "birthday" if level == "full" else "pay")
        results = []
        for box in (InlineSandbox, None):
            env = WorldEnv(box) if box else WorldEnv()
            env.reset(task)
            results.append([env.step(Action(text=code)) for code in codes])
            env.close()
        for code, mine, real in zip(codes, *results, strict=True):
            marks = [line for line in real.observation.splitlines() if set(line.strip()) - set("~^")]
            assert mine.observation.splitlines() == marks or mine.observation == real.observation, code
            assert mine.exec_status == real.exec_status, code


def test_anchor_names_the_state():
    task = tasks("full", "train")[0]
    env, other = WorldEnv(InlineSandbox), WorldEnv(InlineSandbox)
    start = env.reset(task).anchor
    assert other.reset(task).anchor == start
    look = env.step(Action(text="apis.supervisor.show_profile()"))
    assert look.anchor == start
    code = "p = apis.supervisor.show_account_passwords()\nprint(p)"
    env.step(Action(text=code))
    login = (
        "me = apis.supervisor.show_profile()\n"
        "pw = {r['account_name']: r['password'] for r in apis.supervisor.show_account_passwords()}\n"
        "t = apis.notes.login(username=me['email'], password=pw['notes'])['access_token']\n"
        "apis.notes.create_note(title='a', content='b', access_token=t)"
    )
    changed = env.step(Action(text=login)).anchor
    assert changed != start
    assert other.step(Action(text=login)).anchor == changed


@pytest.mark.parametrize(("level", "kind"), [("full", "settle"), ("easy", "paynote")])
def test_the_expert_works_through_the_real_sandbox(level, kind):
    assert play(one_task(level, kind), sandbox=Sandbox)[0].success
