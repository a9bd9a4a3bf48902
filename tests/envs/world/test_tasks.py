"""Splits, determinism, and that every task can be solved by its expert and by nobody who does nothing."""

import pytest

from jaxagent.envs.world.easy import EASY_CHALLENGE, EASY_KINDS
from jaxagent.envs.world.expert import plan
from jaxagent.envs.world.full import FULL_KINDS, FULL_SPLITS
from jaxagent.envs.world.tasks import SPLITS, build, tasks
from jaxagent.errors import ConfigError
from tests.envs.world.worlds import play, run_code

EASY_SAMPLE = 60  # tasks a split: every kind, twice


def sample(level: str, split: str) -> list:
    found = tasks(level, split)
    return list(found) if level == "full" else found[:EASY_SAMPLE]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("level", ["full", "easy"])
def test_the_expert_solves_every_task(level, split):
    failed = {
        task.task_id: verdict for task in sample(level, split) if not (verdict := play(task)[0]).success
    }
    assert not failed


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("level", ["full", "easy"])
def test_doing_nothing_solves_no_task(level, split):
    done = "apis.me.done()" if level == "easy" else "apis.supervisor.complete_task()"
    for task in sample(level, split):
        for codes in ((), (done,)):
            env, _ = run_code(task, *codes)
            verdict = env.evaluate()
            assert not verdict.success, task.task_id
            assert 0 < len(verdict.failures) == verdict.total - verdict.passed


def test_the_full_level_is_as_large_as_promised():
    scenarios = {split: len({task.scenario for task in tasks("full", split)}) for split in SPLITS}
    assert scenarios == {"train": 30, "dev": 12, "test_normal": 24, "test_challenge": 20}
    for split in SPLITS:
        assert {task.difficulty for task in tasks("full", split)} == {1, 2, 3}


@pytest.mark.parametrize("level", ["full", "easy"])
def test_ids_group_into_scenarios_of_three_and_splits_are_disjoint(level):
    seen: set[str] = set()
    for split in SPLITS:
        found = sample(level, split)
        assert [task.task_id for task in found] == [
            f"{task.scenario}_{i % 3 + 1}" for i, task in enumerate(found)
        ]
        assert all(task.task_id.count("_") == 1 and task.split == split for task in found)
        ids = {task.task_id for task in found}
        assert len(ids) == len(found)
        assert not ids & seen
        seen |= ids


def test_the_test_splits_have_kinds_that_training_never_shows():
    train = set(FULL_SPLITS["train"])
    assert len(set(FULL_SPLITS["test_normal"]) - train) == 17
    assert set(FULL_SPLITS["dev"]) - train
    assert not set(FULL_SPLITS["test_challenge"]) & {
        kind for split in SPLITS[:3] for kind in FULL_SPLITS[split]
    }


def test_easy_names_of_held_out_tasks_are_never_seen_in_training():
    def names(split: str) -> set[str]:
        found = set()
        for task in tasks("easy", split)[:150]:
            found |= {row["name"] for row in build(task)[0].tables["book"].values()}
        return found

    train = names("train")
    assert len(train) > 500
    assert not train & names("dev")
    assert not train & names("test_normal")


@pytest.mark.parametrize("level", ["full", "easy"])
def test_the_same_task_gives_the_same_world(level):
    for task in sample(level, "dev")[:12]:
        (first, goal), (second, again) = build(task), build(task)
        assert first.tables == second.tables
        assert first.passwords == second.passwords
        assert (goal.instruction, goal.changes, goal.answer) == (
            again.instruction,
            again.changes,
            again.answer,
        )


def test_the_three_worlds_of_a_scenario_differ():
    first, second, third = (build(task)[0].tables for task in tasks("full", "train")[:3])
    assert first != second
    assert second != third


def test_only_test_challenge_uses_the_shop():
    for split in SPLITS:
        for task in tasks("full", split):
            code = "\n".join(step for step in plan(task, build(task)[1]) if isinstance(step, str))
            assert ("apis.shop." in code) == (split == "test_challenge"), task.task_id


def test_every_kind_has_a_split_and_the_kinds_are_many():
    assert {kind for kinds in FULL_SPLITS.values() for kind in kinds} == set(FULL_KINDS)
    assert len(FULL_KINDS) >= 40
    assert len(EASY_KINDS) >= 8
    assert not set(EASY_KINDS) & set(EASY_CHALLENGE)


def test_a_task_range_is_lazy_and_behaves_like_a_list():
    found = tasks("easy", "train")
    assert len(found) == 60_000
    assert found[-1].task_id == found[len(found) - 1].task_id
    assert [task.type for task in found[0:30:3]] == list(EASY_KINDS)
    with pytest.raises(IndexError):
        found[60_000]


def test_unknown_split_lists_the_known_ones():
    with pytest.raises(ConfigError, match="train, dev, test_normal, test_challenge"):
        tasks("full", "test")


def test_easy_episodes_are_short():
    for task in tasks("easy", "train")[:60]:
        _, results, messages = play(task)
        assert 2 <= len(messages) <= 5
        assert all(message.count("\n") <= 3 and len(message) < 120 for message in messages)
        assert all(len(result.observation) < 60 for result in results)
