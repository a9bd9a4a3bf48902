import json
from collections import Counter

import pytest

from jaxagent.data.demos import DemoSource
from jaxagent.data.tasks import Epochs, TaskSource, easier
from jaxagent.errors import ConfigError, DataError
from jaxagent.stage import Source
from jaxagent.types import Group
from tests.made_episodes import make_group, make_task

POOL = [make_task(f"t{i}", difficulty=1 + i % 3) for i in range(7)]


def ids(plans):
    return [plan.task.task_id for plan in plans]


def source(seed=0, pool=POOL, **kwargs):
    return TaskSource(pool, tasks=3, rollouts=4, seed=seed, **kwargs)


def test_every_task_once_an_epoch_in_another_order_each_time():
    one = source()
    assert isinstance(one, Source)
    seen = [name for i in range(7) for name in ids(one.next(i))]
    epochs = [seen[:7], seen[7:14], seen[14:21]]
    assert all(sorted(epoch) == [f"t{i}" for i in range(7)] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert one.observe([]) == {"data/epoch": 3.0}


def test_the_seed_decides_the_order():
    def first(seed):
        return ids(source(seed).next(0)) + ids(source(seed).next(0))

    assert first(0) == first(0)
    assert len({tuple(first(seed)) for seed in range(5)}) > 1


def test_resume_gives_the_same_tasks_in_the_same_order():
    """10 = 5 + resume + 5, in the middle of an epoch, through JSON, for every place to stop at."""
    whole = source()
    expected = [ids(whole.next(i)) for i in range(10)]
    for stop in range(10):
        one = source()
        begun = [ids(one.next(i)) for i in range(stop)]
        two = source()
        two.restore(json.loads(json.dumps(one.state())))
        assert begun + [ids(two.next(i)) for i in range(stop, 10)] == expected


def test_more_tasks_than_there_are():
    counts = Counter(ids(TaskSource(POOL, tasks=14, rollouts=1).next(0)))
    assert set(counts.values()) == {2}


def test_plans_carry_rollouts_and_prompt():
    def skill(prompt):
        return prompt

    plan = source(prompt=skill).next(0)[0]
    assert plan.n == 4
    assert plan.prompt is skill


@pytest.mark.parametrize("other", [source(seed=1), source(pool=POOL[:6]), source(pool=POOL[::-1])])
def test_another_task_list_or_seed_is_refused(other):
    with pytest.raises(DataError, match="same tasks and seed"):
        other.restore(source().state())


def test_impossible_sources():
    with pytest.raises(ConfigError, match="empty"):
        TaskSource([], tasks=1, rollouts=1)
    with pytest.raises(ConfigError, match="rollouts=0"):
        TaskSource(POOL, tasks=1, rollouts=0)
    with pytest.raises(DataError, match="twice: t0"):
        TaskSource([*POOL, POOL[0]], tasks=1, rollouts=1)


def test_difficulty():
    assert {task.difficulty for task in easier(POOL, 2)} == {1, 2}
    with pytest.raises(ConfigError, match=r"\[1, 2, 3\]"):
        easier(POOL, 0)


def test_demonstrations():
    groups = [make_group([1.0], task=make_task(f"d{i}")) for i in range(5)]
    groups.append(Group(make_task("empty"), ()))
    one = DemoSource(groups, groups=2, seed=3)
    assert isinstance(one, Source)
    whole = [group.task.task_id for i in range(5) for group in one.next(i)]
    assert sorted(whole[:5]) == sorted(whole[5:]) == [f"d{i}" for i in range(5)]
    two, three = DemoSource(groups, groups=2, seed=3), DemoSource(groups, groups=2, seed=3)
    begun = [group.task.task_id for i in range(3) for group in two.next(i)]
    three.restore(json.loads(json.dumps(two.state())))
    assert begun + [group.task.task_id for i in range(2) for group in three.next(i)] == whole
    with pytest.raises(DataError):
        three.restore(DemoSource(groups[:3], groups=2, seed=3).state())
    with pytest.raises(ConfigError, match="no demonstrations"):
        DemoSource([groups[-1]], groups=1)


def test_epochs_are_exact_at_the_boundary():
    epochs = Epochs(4, seed=0, fingerprint="x")
    epochs.take(4)
    assert (epochs.epoch, epochs.position) == (1, 0)
