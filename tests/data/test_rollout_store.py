"""What is read back is what was written, whatever an episode held and wherever a kill cut the file."""

import dataclasses
import json
from dataclasses import replace
from enum import Enum, StrEnum

import numpy as np
import pytest

from jaxagent.data.rollout_codec import decode, encode
from jaxagent.data.rollout_store import FILE, Origin, RolloutStore, RolloutWriter
from jaxagent.data.stored import open_store
from jaxagent.errors import ConfigError, DataError
from jaxagent.types import (
    Action,
    Credited,
    Dropped,
    Group,
    Message,
    Prompt,
    Segment,
    Status,
    StepResult,
    Stop,
    Task,
    ToolCall,
)
from tests.made_episodes import make_group, make_step, make_task, make_trajectory

ORIGIN = Origin(tokenizer="abc", template="plain", model="tiny", temperature=1.0)


def assert_same(found, expected, where="value"):
    """Equal type by type and field by field; arrays in dtype, shape and bits."""
    assert type(found) is type(expected), where
    if isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), where
        assert found.tobytes() == expected.tobytes(), where
        assert found.flags.writeable, where
    elif dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            assert_same(getattr(found, field.name), getattr(expected, field.name), f"{where}.{field.name}")
    elif isinstance(expected, dict):
        assert list(found) == list(expected), where
        for key in expected:
            assert_same(found[key], expected[key], f"{where}[{key!r}]")
    elif isinstance(expected, (tuple, list)):
        assert len(found) == len(expected), where
        for i, (a, b) in enumerate(zip(found, expected)):
            assert_same(a, b, f"{where}[{i}]")
    else:
        assert found == expected or (found != found and expected != expected), where


def odd_group():
    """Empty steps, dropped members, several segments, tool calls, thinking, lone surrogates, deep extras."""
    task = Task(
        "t/ü 1",
        "world",
        "train",
        scenario="s",
        difficulty=3,
        type="mail",
        seed=2**40,
        meta={"a": [1, {"b": None}]},
    )
    call = ToolCall("send", {"to": "Zoë", "n": 3, "deep": {"x": [1.5, True, None]}})
    prompt = Prompt(
        (Message("system", "You are …"), Message("user", "🚪 " * 40)), ({"type": "function", "function": {}},)
    )
    cut = replace(
        make_step(1, tokens=0, status="none", text=""), stop=Stop.CONTEXT, observation_after="\ud800"
    )
    said = replace(
        make_step(0, tokens=3), action=Action("", (call, call)), thinking="hm", anchor="k" * 50, reward=-0.5
    )
    first = Segment(
        np.array([5, 0, 1, 2, 9], np.int32),
        np.array([0, 1, 1, 1, 0], bool),
        np.array([-1, 0, 0, 0, -1], np.int32),
        {
            "behaviour": np.array([0, -0.5, -0.5, -0.5, 0], np.float32),
            "old": np.array([0, -np.inf, np.nan, -0.0, 0], np.float32),
        },
    )
    empty = Segment(np.zeros(0, np.int32), np.zeros(0, bool), np.zeros(0, np.int32), {})
    extra = {
        "label": "skill",
        "pair": (1, "x"),
        3: "three",
        "w": np.float32(0.1),
        "by": {"k": np.arange(6).reshape(2, 3)},
    }
    whole = replace(
        make_trajectory(1.0, task=task),
        steps=(said, cut),
        segments=(first, empty),
        prompt=prompt,
        extra=extra,
    )
    nothing = replace(
        make_trajectory(0.0, task=task, rollout=1, steps=[]),
        segments=(),
        evaluation=None,
        status=Status.LENGTH,
    )
    return Group(task, (whole, nothing), (Dropped(task.task_id, 2, "hang", "no answer"),), position=2)


@pytest.mark.parametrize(
    "value", [odd_group(), make_group([1, 0, 0.5]), Group(make_task(), ())], ids=["odd", "plain", "empty"]
)
def test_a_group_comes_back_equal(value):
    assert_same(decode(encode(value)), value)


def test_every_record_and_enum_that_a_group_can_hold_is_known():
    """A new record in types.py without a line in the codec would stop a run that keeps its rollouts."""
    from jaxagent import types
    from jaxagent.data.rollout_codec import ENUMS, RECORDS

    planned = {"Sampling", "SampleKey", "GenerateRequest", "Completion", "Sample", "Batch"}
    records = {name for name, kind in vars(types).items() if dataclasses.is_dataclass(kind)}
    enums = {
        n
        for n, kind in vars(types).items()
        if isinstance(kind, type) and issubclass(kind, Enum) and kind.__module__ == types.__name__
    }
    assert records - planned == set(RECORDS)
    assert enums == set(ENUMS)


def test_what_was_played_before_the_first_message_is_kept():
    """Chains of tasks (SAGE) define the functions of earlier episodes there."""
    before = ((Action(text="def f(): ..."), StepResult("ok", reward=0.5, info={"n": 1})),)
    assert_same(
        decode(encode(replace(make_trajectory(), before=before))), replace(make_trajectory(), before=before)
    )


def test_credit_of_a_trajectory_is_kept_too():
    item = Credited(
        make_trajectory(1.0), np.array([0.5], np.float32), (np.array([0, 0.5, 0.25], np.float32),)
    )
    assert_same(decode(encode((item,))), (item,))


def test_tokens_of_a_step_are_not_stored_beside_those_of_its_segment():
    rng = np.random.default_rng(0)
    ids_T, logprob_T = (
        rng.integers(0, 150_000, 4000).astype(np.int32),
        rng.normal(size=4000).astype(np.float32),
    )
    segment = Segment(ids_T, np.ones(4000, bool), np.zeros(4000, np.int32), {"behaviour": logprob_T})
    step = replace(make_step(0), ids_T=ids_T[100:3900], logprob_T=logprob_T[100:3900])
    trajectory = replace(make_trajectory(), segments=(segment,))
    alone, both = (encode(replace(trajectory, steps=steps)) for steps in ((), (step,)))
    assert len(both) - len(alone) < 400
    assert_same(decode(both).steps, (step,))


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    "bad", [{"extra": {"x": value}} for value in (object(), np.array(["a"]), Colour.RED, {1}, b"x")]
)
def test_what_cannot_be_stored_is_named(bad):
    with pytest.raises(DataError, match=r"Group\.trajectories\[0\]\.extra\['x'\]"):
        encode(Group(make_task(), (replace(make_trajectory(), **bad),)))


def test_damaged_bytes_are_an_error():
    data = encode(make_group([1.0]))
    for damaged in (data[:-5], b"", data[:20] + bytes(8) + data[28:]):
        with pytest.raises(DataError, match="cannot be read"):
            decode(damaged)


# --- the file -----------------------------------------------------------------------------------------------


def written(path, iterations, **options):
    writer = RolloutWriter(path, ORIGIN, **options)
    for iteration in iterations:
        groups = [make_group([1, iteration], task=make_task(f"{iteration}{name}")) for name in "ab"]
        writer.write(groups, iteration=iteration, stage="rl")
    writer.close()


def tasks(path):
    return [(entry.iteration, entry.task) for entry in RolloutStore(path).entries]


def test_a_store_is_read_by_iteration_from_the_file_or_its_run_folder(tmp_path):
    written(tmp_path / FILE, [3, 5])
    store = RolloutStore(tmp_path)
    assert store.origin == ORIGIN
    assert store.iterations == [3, 5]
    assert [(e.iteration, e.stage, e.task, e.trajectories) for e in store.entries[:2]] == [
        (3, "rl", "3a", 2),
        (3, "rl", "3b", 2),
    ]
    assert_same(
        RolloutStore(tmp_path / FILE).groups(5), [make_group([1, 5], task=make_task(f"5{n}")) for n in "ab"]
    )


def test_a_half_written_group_is_skipped_with_a_notice_and_overwritten(tmp_path, caplog):
    """Cut inside the last group at every kind of place: its fixed start, its head, its body."""
    written(tmp_path / FILE, [0, 1])
    whole, last = (tmp_path / FILE).read_bytes(), RolloutStore(tmp_path).entries[-1]
    for cut in (last.start + 5, last.start + 30, last.end - 1):
        (tmp_path / FILE).write_bytes(whole[:cut])
        caplog.clear()
        assert tasks(tmp_path) == [(0, "0a"), (0, "0b"), (1, "1a")]
        assert "not written to their end" in caplog.text
        written(tmp_path / FILE, [2], after=1)
        assert tasks(tmp_path) == [(0, "0a"), (0, "0b"), (1, "1a"), (2, "2a"), (2, "2b")]
    caplog.clear()
    # The length was written, the bytes were not.
    (tmp_path / FILE).write_bytes(whole[: last.end - 40] + bytes(40))
    assert tasks(tmp_path)[-1] == (1, "1a")
    assert "not written to their end" in caplog.text


def test_iterations_that_are_run_again_are_not_stored_twice(tmp_path):
    written(tmp_path / FILE, [0, 1, 2])
    written(tmp_path / FILE, [1, 2, 3], after=0)
    assert [i for i, _ in tasks(tmp_path)] == [0, 0, 1, 1, 2, 2, 3, 3]
    written(tmp_path / FILE, [], after=-1)
    assert tasks(tmp_path) == []


def test_damage_in_the_middle_is_an_error_when_that_group_is_read(tmp_path):
    written(tmp_path / FILE, [0, 1])
    data, first = bytearray((tmp_path / FILE).read_bytes()), RolloutStore(tmp_path).entries[0]
    data[first.end - 3] ^= 255
    (tmp_path / FILE).write_bytes(data)
    with pytest.raises(DataError, match="damaged at byte"):
        RolloutStore(tmp_path).groups(0)
    assert len(RolloutStore(tmp_path).groups(1)) == 2


def test_other_files_and_versions_are_refused(tmp_path):
    with pytest.raises(DataError, match="keep_rollouts: 1"):
        RolloutStore(tmp_path)
    path = tmp_path / FILE
    for content in (b"", b"\x00\xff", b'{"format": "other"}\n', b"[]\n"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="no store of rollouts"):
            RolloutStore(path)
    path.write_text(json.dumps({"format": "jaxagent rollouts", "version": 2, "origin": {}}) + "\n")
    with pytest.raises(DataError, match="version 2 of the format, this jaxagent reads 1"):
        RolloutStore(path)


def test_rollouts_of_changing_temperatures_are_not_trained_on(tmp_path):
    """Their log-probs are under another temperature every iteration; the run's own says one of them."""
    writer = RolloutWriter(tmp_path / FILE, replace(ORIGIN, schedule="1.2 to 0.7 over 100 iterations"))
    writer.write([make_group([1, 0])], iteration=0, stage="rl")
    writer.close()
    with pytest.raises(ConfigError, match=r"schedule.*1\.2 to 0\.7 over 100"):
        open_store(str(tmp_path), ORIGIN)
    assert len(RolloutStore(tmp_path).groups(0)) == 1


def test_rollouts_of_another_model_or_tokenizer_are_refused(tmp_path):
    written(tmp_path / FILE, [0])
    other = replace(ORIGIN, tokenizer="def", temperature=0.7)
    with pytest.raises(
        ConfigError, match=r"another tokenizer, temperature \(tokenizer: abc there, def in this run"
    ):
        RolloutStore(tmp_path).origin.check(other, tmp_path)
    with pytest.raises(ConfigError, match="another tokenizer"):
        RolloutWriter(tmp_path / FILE, other)
