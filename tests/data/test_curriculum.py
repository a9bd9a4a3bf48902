"""The curriculum's numbers, its frequencies over many draws, and what it remembers."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from jaxagent.data.curriculum import (
    CurriculumOptions,
    CurriculumSource,
    azr,
    expected_learnability,
    learnability,
    posterior_mean,
    probabilities,
    r_zero,
)
from jaxagent.errors import ConfigError, DataError
from jaxagent.recipes.policy import PolicyOptions, task_source
from jaxagent.stage import Source
from jaxagent.types import Status
from tests.made_episodes import make_group, make_task
from tests.recipes.test_stages import materials

POOL = [make_task(f"t{i}", difficulty=1 + i // 2) for i in range(6)]  # two of each difficulty


def source(pool=POOL, *, tasks=2, seed=0, **options):
    return CurriculumSource(pool, CurriculumOptions(**options), tasks=tasks, rollouts=4, seed=seed)


def played(index, solved, of=4):
    """A group of task `index`, in which so many of `of` episodes succeeded; the shaped return says nothing."""
    return make_group([1.0] * solved + [0.3] * (of - solved), task=POOL[index])


def test_weights():
    p = np.array([0, 0.1, 0.5, 0.9, 1])
    np.testing.assert_allclose(learnability(p), [0, 0.09, 0.25, 0.09, 0])
    np.testing.assert_allclose(azr(np.array([0, 0.25, 0.5, 1])), [0, 0.75, 0.5, 0])
    np.testing.assert_allclose(r_zero(np.array([0, 0.25, 0.5, 1])), [0, 0.5, 1, 0])
    np.testing.assert_allclose(posterior_mean(np.array([1.0, 0.0]), np.array([8.0, 0.0])), [0.2, 0.5])
    np.testing.assert_allclose(expected_learnability(np.array([1.0]), np.array([8.0])), [0.145455], atol=1e-6)


def test_probabilities():
    p = learnability(np.array([0, 0.25, 0.5, 0.9]))
    np.testing.assert_allclose(
        probabilities(p, floor=0.01), [0.017621, 0.348018, 0.45815, 0.176211], atol=1e-6
    )
    raised = probabilities(p, min_prob=0.1)
    np.testing.assert_allclose(raised, 0.1 + 0.6 * p / p.sum())
    assert raised.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(probabilities(np.zeros(4)), 0.25)


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        ("learnability", [5 * 1 / 36, 0.25, 1 * 5 / 36]),
        ("expected", [5 * 1 / 42, 1 / 6, 1 * 5 / 42]),
        ("azr", [1 / 6, 0.5, 5 / 6]),
        ("r_zero", [1 / 3, 1, 1 / 3]),
        ("uniform", [1, 1, 1]),
    ],
)
def test_what_was_solved_decides_by_the_chosen_weight(weight, expected):
    """Four of four, never played, none of four: posterior means 5/6, 1/2, 1/6."""
    curriculum = source(POOL[:3], weight=weight, floor=0.0, fail_boost=1.0)
    curriculum.observe([played(0, 4), played(2, 0)])
    _, p = curriculum.distribution()
    np.testing.assert_allclose(p, np.array(expected) / sum(expected))


def test_frequencies_over_many_draws():
    curriculum = source(POOL[:4], tasks=1, floor=0.01, fail_boost=1.0, min_prob=0.05)
    curriculum.observe([played(0, 4), played(1, 2), played(2, 0)])
    open_, p = curriculum.distribution()
    draws = 6000
    counts = Counter(plan.task.task_id for i in range(draws) for plan in curriculum.next(i))
    found = np.array([counts[POOL[index].task_id] for index in open_]) / draws
    np.testing.assert_allclose(found, p, atol=4 * np.sqrt(0.25 / draws))
    assert p.min() >= 0.05


def test_a_draw_holds_different_tasks_and_all_before_one_comes_twice():
    for number in range(20):
        names = [plan.task.task_id for plan in source(tasks=4, seed=number).next(0)]
        assert len(set(names)) == 4
    counts = Counter(plan.task.task_id for plan in source(tasks=8).next(0))
    assert len(counts) == 6
    assert sorted(counts.values()) == [1, 1, 1, 1, 2, 2]
    (plan, *_) = source().next(0)
    assert (plan.n, plan.prompt) == (4, None)
    assert isinstance(source(), Source)


def test_failed_tasks_return_with_more_weight_until_they_are_old_or_solved():
    curriculum = source(POOL[:2], floor=0.0, weight="uniform", fail_boost=2.0, max_age=4)

    def odds():
        _, p = curriculum.distribution()
        return p[0] / p[1]

    assert odds() == 1.0
    found = []
    curriculum.observe([played(0, 0)])
    for _ in range(5):
        found.append(odds())
        curriculum.observe([])
    np.testing.assert_allclose(found, [2.0, 1.75, 1.5, 1.25, 1.0])
    assert curriculum.observe([played(0, 0)])["curriculum/failed"] == 1.0
    assert odds() == pytest.approx(2.0)
    assert curriculum.observe([played(0, 1)])["curriculum/failed"] == 0.0
    assert odds() == 1.0


def test_difficulties_open_one_after_another():
    curriculum = source(tasks=6, start_difficulty=1, promote_at=0.6, window=2)

    def drawn():
        return {plan.task.difficulty for plan in curriculum.draw()}

    assert drawn() == {1}
    # .5 of the last two.
    assert curriculum.observe([played(0, 4), played(1, 0)])["curriculum/difficulty"] == 1.0
    assert curriculum.observe([played(1, 3)])["curriculum/difficulty"] == 1.0  # 0 and .75
    assert curriculum.observe([played(0, 2)])["curriculum/difficulty"] == 2.0  # .75 and .5
    assert drawn() == {1, 2}
    easy = [played(0, 4)] * 4
    assert curriculum.observe(easy)["curriculum/difficulty"] == 2.0  # easier tasks open nothing
    assert curriculum.observe([played(2, 4), played(3, 4)])["curriculum/difficulty"] == 3.0
    # There is no harder one.
    assert curriculum.observe([played(4, 4), played(5, 4)])["curriculum/difficulty"] == 3.0
    assert drawn() == {1, 2, 3}


def test_only_the_verdict_of_episodes_that_ended_counts():
    curriculum = source()
    group = played(0, 2)
    lost = replace(group.trajectories[0], status=Status.ENV_FAILED)
    curriculum.observe([replace(group, trajectories=(lost, *group.trajectories[1:]))])
    assert (curriculum._solved[0], curriculum._played[0]) == (1, 3)
    empty = replace(played(1, 1), trajectories=())
    stranger = make_group([1.0], task=make_task("elsewhere"))
    metrics = curriculum.observe([empty, stranger])
    assert metrics["curriculum/never_seen"] == 5.0


def test_old_outcomes_are_forgotten_at_the_given_rate():
    curriculum = source(memory=0.5)
    for _ in range(3):
        curriculum.observe([played(0, 4)])
    assert (curriculum._solved[0], curriculum._played[0]) == (7, 7)  # 4 + 2 + 1


def test_metrics():
    curriculum = source(POOL[:4], floor=0.0, fail_boost=1.0)
    metrics = curriculum.observe([played(0, 4), played(1, 0)])
    _, p = curriculum.distribution()
    assert metrics["curriculum/entropy"] == pytest.approx(-(p * np.log(p)).sum() / np.log(4))
    assert metrics["curriculum/never_seen"] == 2.0
    shares = [metrics[f"curriculum/p_below_{bound}"] for bound in (0.2, 0.4, 0.6, 0.8, 1)]
    assert shares == [0.5, 0, 0, 0, 0.5]  # of the tasks seen: 1/6 and 5/6
    assert source(POOL[:1], tasks=1).observe([])["curriculum/entropy"] == 1.0


def test_a_resumed_curriculum_draws_the_same_tasks():
    rules = {"start_difficulty": 1, "window": 2, "memory": 0.9, "max_age": 3}
    one = source(**rules)
    for iteration in range(7):
        one.observe([played(POOL.index(plan.task), iteration % 5) for plan in one.next(iteration)])
    again = source(**rules)
    again.restore(json.loads(json.dumps(one.state())))
    assert again.state() == one.state()
    for iteration in range(7, 12):
        plans = one.next(iteration)
        assert plans == again.next(iteration)
        groups = [played(POOL.index(plan.task), iteration % 5) for plan in plans]
        assert one.observe(groups) == again.observe(groups)


def test_another_list_or_seed_is_refused():
    state = source().state()
    for other in (source(POOL[:5]), source(seed=1)):
        with pytest.raises(DataError, match="resume with the same tasks and seed"):
            other.restore(state)
    with pytest.raises(DataError, match="fingerprint None"):
        source().restore({"epoch": 1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_prob": 0.2}, "adds up to more than 1"),
        ({"pool": [make_task("a", difficulty=3)], "start_difficulty": 2}, "opens no task"),
        ({"pool": []}, "empty"),
        ({"pool": [POOL[0], POOL[0]]}, "twice"),
        ({"tasks": 0}, "tasks=0"),
    ],
)
def test_impossible_curricula(options, message):
    with pytest.raises((ConfigError, DataError), match=message):
        source(**options)


def test_a_recipe_draws_from_its_pool_with_or_without_a_curriculum():
    made = materials(tasks=POOL)
    plain = task_source(PolicyOptions(tasks=2, pool=3), made)
    assert {plan.task.task_id for i in range(9) for plan in plain.next(i)} == {"t0", "t1", "t2"}
    options = PolicyOptions.parse({"tasks": 3, "pool": 3, "group_size": 5, "curriculum": {"fail_boost": 1.5}})
    curriculum = task_source(options, made)
    assert isinstance(curriculum, CurriculumSource)
    plans = curriculum.next(0)
    assert {plan.task.task_id for plan in plans} == {"t0", "t1", "t2"}
    assert {plan.n for plan in plans} == {5}
    with pytest.raises(ConfigError, match="did you mean 'fail_boost'"):
        PolicyOptions.parse({"curriculum": {"fail_bost": 2}})
