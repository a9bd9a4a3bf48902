"""The unit tests of a task: each can fail on its own, and nothing an agent does makes them raise."""

import pytest

from jaxagent.envs.world.engine import World, copy_tables
from jaxagent.envs.world.goal import (
    Goal,
    added,
    differences,
    evaluate,
    normal,
    removed,
    same_answer,
    updated,
)
from tests.envs.world.worlds import one_task, play, run_code

START = {"item": {1: {"id": 1, "done": False, "n": 5}, 2: {"id": 2, "done": False, "n": 6}}, "log": {}}


def verdict(goal: Goal, change=lambda world: None, **finish):
    """Evaluate `goal` after `change(world)` and the completion call."""
    world = World({}, copy_tables(START))
    change(world)
    world.completed, world.status, world.answer = True, "success", None
    for name, value in finish.items():
        setattr(world, name, value)
    return evaluate(goal, START, world)


FINISH_1 = Goal("", (), (updated("item", 1, done=True), added("log", text="x")))


def right(world: World) -> None:
    world.change("item", 1, done=True)
    world.add("log", text="X ", when="now")


def test_intended_changes_pass():
    result = verdict(FINISH_1, right)
    assert (result.success, result.passed, result.total) == (True, 5, 5)


def test_collateral_change_fails_one_test():
    def act(world: World) -> None:
        right(world)
        world.change("item", 2, n=7)

    result = verdict(FINISH_1, act)
    assert (result.success, result.passed, result.total) == (False, 4, 5)
    assert "other records changed" in result.failures[0]


@pytest.mark.parametrize(
    "act",
    [
        lambda world: world.remove("item", 2),
        lambda world: world.add("item", done=False, n=1),
        lambda world: world.add("log", text="x"),
    ],
)
def test_every_kind_of_collateral_change_is_seen(act):
    def both(world: World) -> None:
        right(world)
        act(world)

    assert verdict(FINISH_1, both).passed == 4


def test_a_further_field_of_the_right_row_is_collateral():
    def act(world: World) -> None:
        right(world)
        world.change("item", 1, n=99)

    result = verdict(FINISH_1, act)
    assert result.passed == 3  # the change does not match, and is left over
    assert len(result.failures) == 2


def test_missing_changes_are_counted_singly():
    result = verdict(FINISH_1, lambda world: world.change("item", 1, done=True))
    assert (result.passed, result.total) == (4, 5)


def test_removal():
    goal = Goal("", (), (removed("item", 2),))
    assert verdict(goal, lambda world: world.remove("item", 2)).success
    assert not verdict(goal, lambda world: world.remove("item", 1)).success


def test_completion_is_required_with_status_success():
    assert verdict(FINISH_1, right, completed=False).passed == 3  # neither completed nor answered
    assert verdict(FINISH_1, right, status="fail").passed == 4


def test_an_answer_where_none_is_wanted_fails():
    assert not verdict(FINISH_1, right, answer="done").success


def test_touching_and_restoring_is_no_change():
    def act(world: World) -> None:
        world.change("item", 1, done=True)
        world.change("item", 1, done=False)

    assert differences(START, World({}, copy_tables(START)).tables) == []
    assert verdict(Goal("", (), answer=3), act, answer=3).success


@pytest.mark.parametrize(
    ("got", "wanted", "same"),
    [
        ("5512", "5512", True),
        (5512, "5512", True),
        (" Ada  FROST.", "Ada Frost", True),
        ("$12.50", 12.5, True),
        ("1,200", 1200, True),
        (12.504, 12.5, True),
        (12.51, 12.5, False),
        ("", None, False),
        (None, None, True),
        (None, 0, False),
        (True, 1, False),
        (float("nan"), 1, False),
        (float("inf"), "x", False),
        ("nan", 1, False),
        ("b, a", ["a", "b"], True),
        (["b", "a"], ["a", "b"], True),
        ({"a": 1}, "x", False),
        pytest.param("x" * 100_000, "x", False, id="long"),
        pytest.param(10**400, 1, False, id="huge"),
        pytest.param([10**400], [1], False, id="huge in a list"),
    ],
)
def test_answers(got, wanted, same):
    assert same_answer(got, wanted) is same


def test_normal_form():
    assert normal("  Two\n words. ") == "two words"
    assert normal("3.0") == normal(3) == 3.0


def test_partial_loop_fails_and_is_partly_credited():
    task = one_task("easy", "finish")
    full = play(task)[0]
    tag = run_code(task)[0].reset(task).observation.split()[-1]
    env, _ = run_code(
        task, f'for i in apis.todo.find(tag="{tag}")[:1]:\n  apis.todo.finish(id=i)', "apis.me.done()"
    )
    part = env.evaluate()
    assert full.success
    assert not part.success
    assert part.passed == 4  # completed, answer, one item, nothing else


@pytest.mark.parametrize("extra", ['apis.todo.add(text="x")', 'apis.notes.add(title="a", text="b")'])
def test_the_right_solution_with_collateral_damage_fails(extra):
    task = one_task("easy", "add")
    words = run_code(task)[0].reset(task).observation.split()
    code = f'apis.book.add(name="{words[1]}", phone="{words[2]}")'
    good, _ = run_code(task, code, "apis.me.done()")
    bad, _ = run_code(task, code, extra, "apis.me.done()")
    assert good.evaluate().success
    assert bad.evaluate().passed == good.evaluate().total - 1
