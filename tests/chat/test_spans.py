"""Action tokens: spans that begin and end inside tokens, characters split over tokens, styles of answers."""

import numpy as np
import pytest

from jaxagent.chat.spans import action_span, action_tokens, span_tokens
from jaxagent.chat.tools import parse_code, parse_tool_calls
from jaxagent.envs.commands import parse_command
from jaxagent.types import Action, Message, ToolCall

STOP = 99


def decoder(pieces):
    """ids 0.. are these byte strings, as in a byte-level tokenizer; 99 is the end-of-turn."""
    table = dict(enumerate(pieces)) | {STOP: b"<end>"}
    return lambda ids: b"".join(table[int(i)] for i in ids).decode("utf-8", "replace")


def marked(pieces, action, *, stop=True):
    """1 for every token of the action."""
    ids = [*range(len(pieces)), *([STOP] if stop else [])]
    place = action_tokens(ids, action, decode=decoder(pieces), stop_ids=(STOP,))
    mask = np.zeros(len(ids), int)
    if place is not None:
        mask[place] = 1
    return mask.tolist()


def test_the_action_inside_its_tag():
    pieces = [
        b"<think>",
        b"go to",
        b" it",
        b"</think>",
        b"<action>",
        b"go",
        b" to desk",
        b" 1",
        b"</",
        b"action>",
    ]
    assert marked(pieces, Action("go to desk 1")) == [0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0]


def test_tokens_that_reach_over_the_boundary_count():
    """`>go` ends the tag and begins the action, `1</` ends it: both carry a part of the command."""
    pieces = [b"<act", b"ion", b">go", b" to desk ", b"1</", b"action>"]
    assert marked(pieces, Action("go to desk 1")) == [0, 0, 1, 1, 1, 0, 0]


def test_a_character_split_over_tokens_counts_whole():
    """The two bytes of é lie in two tokens, at the start, in the middle and at the end of the command."""
    e, acute = "é".encode()[:1], "é".encode()[1:]
    pieces = [b"<action>", e, acute, b"t", e, acute, b"</action>"]
    assert marked(pieces, Action("été")) == [0, 1, 1, 1, 1, 1, 0, 0]
    smile = "🙂".encode()
    pieces = [b"\xc3", b"\xa9<action>", smile[:2], smile[2:3], smile[3:], b"</action>"]
    assert marked(pieces, Action("🙂")) == [0, 0, 1, 1, 1, 0, 0]


def test_a_message_that_is_all_action_counts_to_its_end():
    assert marked([b"look", b" around"], Action("look around")) == [1, 1, 1]
    assert marked([b"look", b" around\n"], Action("look around"), stop=False) == [1, 1]


def test_what_cannot_be_located_is_left_out():
    assert marked([b"Up", b" || ", b"Left"], Action("up left")) == [0, 0, 0, 0]
    assert marked([b"hm"], Action(error="Found no command")) == [0, 0]
    assert marked([], Action("")) == [0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>take mug 1</think><action>Take  mug 1\n</action>", "Take  mug 1"),
        ("I take mug 1. <ACTION>take mug 1</ACTION> <action>look</action>", "take mug 1"),
        ("<action> look </action>", "look"),
    ],
)
def test_spans_of_commands_as_the_parser_reads_them(text, expected):
    action = parse_command(Message("assistant", text), "action")
    start, end = action_span(text, action)
    assert text[start:end] == expected
    assert action.text == " ".join(expected.lower().split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I run print(1).\n```python\nprint(1)\n```\nThen ```python\nprint(2)\n```", "print(1)"),
        ("x = 1\nprint(x)", "x = 1\nprint(x)"),
        ("```print(1)```", "print(1)"),
        ("```python\nprint(1)", "print(1)"),
    ],
)
def test_spans_of_code(text, expected):
    start, end = action_span(text, parse_code(Message("assistant", text), whole=True))
    assert text[start:end] == expected


def test_tool_calls_count_with_their_tags():
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    text = f"First.\n{call}\n{call} done"
    start, end = action_span(text, parse_tool_calls(Message("assistant", text)))
    assert text[start:end] == f"{call}\n{call}"
    assert action_span("no call", Action("x", tool_calls=(ToolCall("f", {}),))) is None


def test_a_span_of_tokens_is_found_by_bisection_as_by_counting():
    """Every span of a text, cut into tokens of 3 characters."""
    text = "abcdefghijk"
    pieces = [text[i : i + 3].encode() for i in range(0, len(text), 3)]
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            place = span_tokens(range(len(pieces)), text, (start, end), decode=decoder(pieces))
            assert (place.start, place.stop) == (start // 3, (end - 1) // 3 + 1)
