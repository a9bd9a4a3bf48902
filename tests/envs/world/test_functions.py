"""The scripted agent of chains solves by functions, and by those that are there already."""

import random

import pytest

from jaxagent.envs.world.functions import METHODS, chain_policy
from jaxagent.envs.world.spec import world_spec
from jaxagent.envs.world.tasks import tasks
from jaxagent.rollout.demonstrate import perform
from jaxagent.skills.functions import carried, used
from jaxagent.skills.hand_on import handed
from jaxagent.types import Action, ExecStatus

EASY, FULL = world_spec("easy"), world_spec("full")


def played(spec, task, library=(), sloppiness=0.0, seed=0):
    policy = chain_policy(task, random.Random(seed), [function.name for function in library], sloppiness)
    start = handed(library)
    return perform(spec, task, policy, prompt=start.prompt, before=start.before)


def easy_tasks(kind):
    split = "train" if kind in {task.type for task in tasks("easy", "train")[:60]} else "test_challenge"
    return [task for task in tasks("easy", split)[:90] if task.type == kind][:3]


@pytest.mark.parametrize("kind", METHODS)
def test_every_kind_is_solved_by_defining_and_by_reusing(kind):
    from tests.skills.test_functions import episode

    first, second, third = easy_tasks(kind)
    define = played(EASY, first)
    assert define.evaluation.success
    assert [result.exec_status for result in define.results[1:]] == [ExecStatus.OK] * 2
    library = carried([episode(*(action.text for action in define.actions))])
    assert [function.name for function in library] == [METHODS[kind].name]
    for task in (second, third):
        reuse = played(EASY, task, library)
        assert reuse.evaluation.success
        assert len(reuse.actions) == 1
        assert used(episode(*(action.text for action in reuse.actions)), library) == (METHODS[kind].name,)
        assert [result.exec_status for _, result in reuse.before] == [ExecStatus.OK]
        assert METHODS[kind].name in reuse.prompt.messages[0].content


def test_a_definition_writes_its_parameters_as_the_call_names_them():
    assert METHODS["pay"].definition.startswith("def pay(amount, to):\n  tok = ")
    assert METHODS["balance"].definition.startswith("def balance():\n  tok = ")


def test_at_the_full_level_pages_is_defined_once_a_chain():
    from tests.skills.test_functions import episode

    first, second = [
        task for task in tasks("full", "train") if task.scenario == tasks("full", "train")[0].scenario
    ][:2]
    define = played(FULL, first)
    library = carried([episode(*(action.text for action in define.actions))])
    assert "pages" in [function.name for function in library]
    reuse = played(FULL, second, library)
    assert define.evaluation.success
    assert reuse.evaluation.success
    assert not any("def pages" in action.text for action in reuse.actions)
    assert "pages" in reuse.prompt.messages[0].content


def test_a_sloppy_one_gives_samples_to_reject():
    task = easy_tasks("pay")[0]
    library = carried([])
    kinds = {
        (len(p.actions), p.evaluation.success)
        for p in (played(EASY, task, library, 1.0, n) for n in range(12))
    }
    assert (3, True) in kinds  # without a function
    assert any(not solved for _, solved in kinds)
    assert isinstance(played(EASY, task).actions[0], Action)
