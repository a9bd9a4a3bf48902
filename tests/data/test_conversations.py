"""Files of conversations: what a line may hold, which tokens are trained, which lines are refused by name."""

import json

import numpy as np
import pytest

from jaxagent.batch.targets import imitation_samples
from jaxagent.chat.render import Renderer
from jaxagent.chat.train_tokenizer import train_tokenizer
from jaxagent.data.conversations import read_conversations
from jaxagent.errors import DataError
from jaxagent.recipes.base import Materials
from jaxagent.recipes.table import RECIPES
from jaxagent.train import credit
from jaxagent.types import ExecStatus, Sampling, Task

PLAIN = Renderer(train_tokenizer(["print(1) apis.pay"], 300), "plain")


def say(role, content, **more):
    return {"role": role, "content": content, **more}


TALK = [
    say("user", "go"),
    say("assistant", "x = 1/0", exec_status="runtime_error"),
    say("tool", "ZeroDivisionError\u2028line"),  # a line separator of Unicode is none of JSON Lines
    say("assistant", "print(1)"),
]


def written(folder, *lines):
    path = folder / "talks.jsonl"
    path.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines), encoding="utf-8")
    return path


def test_a_conversation_becomes_one_segment_with_its_failed_steps_known(tmp_path):
    (talk,) = read_conversations(written(tmp_path, {"messages": TALK}), PLAIN)
    assert [step.exec_status for step in talk.steps] == [ExecStatus.RUNTIME_ERROR, ExecStatus.OK]
    (segment,) = talk.segments
    decode = PLAIN.tokenizer.decode
    assert [decode(segment.ids_T[segment.step_T == k]) for k in (0, 1)] == [
        "x = 1/0<|end|>",
        "print(1)<|end|>",
    ]
    np.testing.assert_array_equal(segment.mask_T, segment.step_T >= 0)


def test_calls_in_openais_form_and_empty_contents_are_read(tmp_path):
    from jaxagent.data.conversations import _message

    call = {"id": "1", "type": "function", "function": {"name": "pay", "arguments": '{"to": "me"}'}}
    message = _message(say("assistant", None, tool_calls=[call]))
    assert message.content == ""
    assert (message.tool_calls[0].name, message.tool_calls[0].arguments) == ("pay", {"to": "me"})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"messages": [say("user", None)]}, "content is NoneType, expected text"),
        ({"messages": [say("user", [{"type": "text"}])]}, "content is list"),
        ({"messages": [say("robot", "x")]}, "unknown role 'robot'"),
        ({"messages": [say("assistant", "x", exec_status="bad")]}, "'bad' is not a valid ExecStatus"),
        ({"messages": [say("user", "x")]}, "0 assistant messages"),
        ({"talk": []}, "KeyError"),
        ([], "TypeError"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path, line, words):
    with pytest.raises(DataError, match=words):
        read_conversations(written(tmp_path, {"messages": TALK}, line), PLAIN)


def test_a_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"x\.jsonl is not UTF-8 text"):
        read_conversations(tmp_path / "x.jsonl", PLAIN)


def sft(path, **options):
    materials = Materials(
        name="sft",
        spec=None,
        tasks=[Task("t", "world", "train")],
        renderer=PLAIN,
        sampling=Sampling(max_tokens=4),
        row=200,
        seed=0,
        demonstrate=lambda tasks, sloppiness, slips: [],
    )
    return RECIPES["sft"].stage(
        RECIPES["sft"].options.parse({"file": str(path), "batch": 1, **options}), materials
    )


def test_failed_steps_of_a_file_are_masked(tmp_path):
    stage = sft(written(tmp_path, {"messages": TALK}), mask_errors=True)
    (sample,) = stage.samples(credit(stage, stage.source.next(0)))
    assert {int(k) for k in sample.step_T[sample.include["ce"] > 0]} == {1}
    (all_of_it,) = imitation_samples(credit(stage, stage.source.next(1)))
    assert {int(k) for k in all_of_it.step_T[all_of_it.include["ce"] > 0]} == {0, 1}


def test_masking_errors_that_no_message_has_is_refused(tmp_path):
    clean = [say("user", "go"), say("assistant", "print(1)")]
    with pytest.raises(DataError, match="mask_errors, but no message"):
        sft(written(tmp_path, {"messages": clean}), mask_errors=True)


EXAMPLE = [say("user", "an example"), say("assistant", "solved"), *TALK]


def test_what_belongs_to_the_prompt_is_not_trained(tmp_path):
    (whole,) = read_conversations(written(tmp_path, {"messages": EXAMPLE}), PLAIN)
    (after,) = read_conversations(written(tmp_path, {"messages": EXAMPLE, "prompt_turn_idx": 2}), PLAIN)
    assert [len(whole.steps), len(after.steps)] == [3, 2]
    assert [step.exec_status for step in after.steps] == [ExecStatus.RUNTIME_ERROR, ExecStatus.OK]
    assert [message.content for message in after.prompt.messages] == ["an example", "solved", "go"]
    (segment,), (full,) = after.segments, whole.segments
    np.testing.assert_array_equal(segment.ids_T, full.ids_T)
    np.testing.assert_array_equal(segment.mask_T, full.step_T >= 1)
    np.testing.assert_array_equal(segment.step_T, np.where(full.step_T >= 1, full.step_T - 1, -1))


def test_a_line_may_say_its_task_and_verdict(tmp_path):
    lines = [{"messages": TALK, "task": "t7", "success": True}, {"messages": TALK, "success": False}]
    first, second = read_conversations(written(tmp_path, *lines), PLAIN)
    assert (first.task.task_id, first.success, second.success) == ("t7", True, False)
    assert first.traj_id != second.traj_id


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt_turn_idx": 4}, "prompt_turn_idx=4"),
        ({"prompt_turn_idx": -1}, "prompt_turn_idx=-1"),
        ({"prompt_turn_idx": True}, "prompt_turn_idx=True"),
        ({"success": "yes"}, "expected true or false"),
    ],
)
def test_fields_that_cannot_be_are_refused_by_name(tmp_path, fields, message):
    with pytest.raises(DataError, match=message):
        read_conversations(written(tmp_path, {"messages": TALK, **fields}), PLAIN)
