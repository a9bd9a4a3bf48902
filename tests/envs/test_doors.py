"""The two-turn door game through its public interface."""

import pickle
from random import Random

import numpy as np
import pytest

from jaxagent.envs.doors import COLOURS, DOORS, ITEMS, USAGE, Doors, parse, tasks
from jaxagent.errors import ConfigError
from jaxagent.types import Action, ExecStatus, Message, Prompt, Status, Step, Stop, Task, Trajectory

SPLITS = ("train", "dev", "test")


def play(task: Task, *messages: str):
    """The results of an episode, the reset first, and its verdict."""
    env = DOORS.make()
    results = [env.reset(task)]
    for text in messages:
        if results[-1].done:
            break
        results.append(env.step(DOORS.parse(Message("assistant", text))))
    verdict = env.evaluate()
    env.close()
    return results, verdict


def lamp_behind_blue() -> Task:
    return Task("doors/hand", "doors", "train", meta={"colour": "blue", "item": "lamp"})


def play_script(task: Task, sloppiness: float, seed: int = 0):
    policy = DOORS.expert(task, Random(seed), sloppiness)
    env = Doors()
    results = [env.reset(task)]
    while not results[-1].done:
        results.append(env.step(parse(Message("assistant", policy.act(results[-1].observation)))))
    return results, env.evaluate()


@pytest.mark.parametrize("split", SPLITS)
def test_the_expert_solves_every_task(split):
    for task in tasks(split):
        results, verdict = play_script(task, 0.0)
        assert verdict.success, task.task_id
        assert verdict.passed == verdict.total == 2
        assert [result.reward for result in results] == [0.0, 0.5, 0.5]


def test_a_sloppy_expert_fails_in_part():
    played = [play_script(task, 0.5, seed)[1].passed for seed, task in enumerate(tasks("train"))]
    assert set(played) == {0, 1, 2}
    assert not any(play_script(task, 1.0)[1].success for task in tasks("test"))


@pytest.mark.parametrize("split", SPLITS)
def test_doing_nothing_scores_nothing(split):
    for task in tasks(split):
        results, verdict = play(task, "", "")
        assert not verdict.success
        assert verdict.passed == 0
        assert len(verdict.failures) == 2
        assert [result.exec_status for result in results[1:]] == [ExecStatus.INVALID] * 2


@pytest.mark.parametrize(
    ("messages", "passed", "statuses"),
    [
        (("blue", "lamp"), 2, ("ok", "ok")),
        (("blue", "the lamp"), 1, ("ok", "invalid")),
        (("blue", "blue"), 1, ("ok", "runtime_error")),  # the door's half is paid once
        (("lamp", "blue"), 1, ("runtime_error", "ok")),
        (("lamp", "lamp"), 0, ("runtime_error", "runtime_error")),
        (("open blue", "blue"), 1, ("invalid", "ok")),
    ],
)
def test_partial_credit(messages, passed, statuses):
    results, verdict = play(lamp_behind_blue(), *messages)
    assert verdict.passed == passed
    assert sum(result.reward for result in results) == passed / 2
    assert tuple(result.exec_status.value for result in results[1:]) == statuses
    assert results[-1].done


def test_a_wrong_door_shows_nothing_and_a_wrong_item_ends_the_game():
    task = lamp_behind_blue()
    env = Doors()
    shown = env.reset(task).observation
    wrong = next(colour for colour in COLOURS if colour in shown and colour != "blue")
    assert env.step(Action(wrong)).observation == f"The {wrong} door is open. You see: nothing."
    env.reset(task)
    seen = env.step(Action("blue")).observation
    item = next(item for item in ITEMS if item in seen and item != "lamp")
    last = env.step(Action(item))
    assert (last.done, last.reward, env.evaluate().passed) == (True, 0.0, 1)


def test_splits_share_words_but_no_pair_and_no_task():
    pairs = {split: {(task.meta["colour"], task.meta["item"]) for task in tasks(split)} for split in SPLITS}
    assert {split: len(tasks(split)) for split in SPLITS} == {"train": 192, "dev": 16, "test": 32}
    assert not pairs["train"] & pairs["dev"]
    assert not pairs["train"] & pairs["test"]
    assert not pairs["dev"] & pairs["test"]
    for split in ("train", "test"):
        assert {colour for colour, _ in pairs[split]} == set(COLOURS)
    assert {item for _, item in pairs["train"]} == set(ITEMS)
    ids = [task.task_id for split in SPLITS for task in tasks(split)]
    assert len(set(ids)) == len(ids) == 240


def test_rooms_of_a_pair_differ_and_the_right_word_is_in_no_fixed_place():
    places = []
    for task in tasks("train"):
        env = Doors()
        env.reset(task)
        places.append((env.doors.index(task.meta["colour"]), env.items.index(task.meta["item"])))
    counts = np.bincount([3 * door + item for door, item in places], minlength=9)
    assert counts.min() >= 192 / 9 / 2  # nine places, none starved
    first, second = tasks("train")[:2]
    assert first.scenario == second.scenario
    assert Doors().reset(first).observation != Doors().reset(second).observation


def test_reset_is_the_same_in_every_process_and_run():
    assert Doors().reset(tasks("test")[0]).observation == (
        "You need the bell. The bell is behind the red door. Doors: green, brown, red."
    )


@pytest.mark.parametrize("text", ["blue", "Blue.", " blue\n"])
def test_parse_takes_one_word(text):
    assert parse(Message("assistant", text)) == Action(text="blue")


@pytest.mark.parametrize("text", ["", "open blue", "blue lamp", "blue\nlamp", "7", "blue7", "bl-ue"])
def test_parse_answers_anything_else_with_the_usage(text):
    assert parse(Message("assistant", text)) == Action(error=USAGE)


def test_a_foreign_action_is_invalid_not_a_crash():
    env = Doors()
    env.reset(lamp_behind_blue())
    assert env.step(Action(text="close blue")).exec_status is ExecStatus.INVALID


def test_unknown_split_names_the_known_ones():
    with pytest.raises(ConfigError, match=r"\['dev', 'test', 'train'\]"):
        DOORS.tasks("valid")


def test_the_spec_travels_to_a_worker_and_opens_with_an_example():
    assert isinstance(pickle.loads(pickle.dumps(DOORS.make))(), Doors)
    task = lamp_behind_blue()
    opening = DOORS.prompt(task, Doors().reset(task)).messages
    assert [message.role for message in opening] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert opening[-1].content == Doors().reset(task).observation
    assert [DOORS.parse(message).text for message in opening[2::2]] == ["pink", "pen"]
    words = " ".join(message.content for message in opening[:-1]).split()
    assert not {*COLOURS, *ITEMS} & set(words)


def trajectory(task: Task, *messages: str) -> Trajectory:
    results, verdict = play(task, *messages)
    empty = np.zeros(0, np.int32)
    steps = tuple(
        Step(
            k=k,
            observation_before=results[k].observation,
            text=text,
            ids_T=empty,
            logprob_T=empty.astype(np.float32),
            version=0,
            stop=Stop.STOP,
            action=parse(Message("assistant", text)),
            exec_status=results[k + 1].exec_status,
            observation_after=results[k + 1].observation,
        )
        for k, text in enumerate(messages)
    )
    return Trajectory("t", task, 0, Status.DONE, Prompt(()), steps, (), evaluation=verdict)


def test_metrics_are_means_over_episodes_and_steps():
    task = lamp_behind_blue()
    played = [
        trajectory(task, "blue", "lamp"),
        trajectory(task, "blue", "hello"),
        trajectory(task, "hello", "hello"),
        trajectory(task, "hello", "blue"),
    ]
    assert DOORS.metrics(played) == {"reward": 0.5, "success": 0.25, "door": 0.75, "invalid": 0.5}
    assert DOORS.metrics([]) == {}
