"""Actions from messages. A parse failure is an error text for the model: no exception, no empty call."""

import json
import random

import pytest

from jaxagent.chat.tools import parse_code, parse_tool_calls
from jaxagent.types import Action, Message, ToolCall
from tests.chat.conversations import TOOLS


def said(text, thinking=None):
    return Message("assistant", text, thinking=thinking)


def call(name="add", arguments=None):
    body = {"name": name, "arguments": {"a": 1, "b": 2} if arguments is None else arguments}
    return f"<tool_call>\n{json.dumps(body)}\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("I look.\n```python\nprint(1)\n```\nDone.", "print(1)"),
        ("```python\nfor i in x:\n    print(i)\n```", "for i in x:\n    print(i)"),
        ("```py\nx = 1\n\ny = 2\n```", "x = 1\n\ny = 2"),
        ("```Python\nx\n```", "x"),
        ("```\nx\n```", "x"),
        ("text ```python\nx\n```", "x"),
        ("```python\nprint(1", "print(1"),  # cut by the token limit
        ("```python\nx = '''\n``` not a fence? it is'''", "x = '''"),
        ("```python\nx = '```'\n```", "x = '```'"),
        ("```print(1)```", "print(1)"),
        ("```python print(1)```", "print(1)"),
        ("```json\n{}\n```\n```python\nx\n```", "x"),
        ("```python\n\n```\n```python\nx\n```", "x"),
        ("```python\n  x\n  ```", "  x"),
        ("```python\r\nx\r\n```", "x"),
    ],
)
def test_code_blocks(text, code):
    assert parse_code(said(text)) == Action(text=code)


def test_first_or_all_blocks():
    message = said("```python\na\n```\nand\n```\nb\n```\n```python\nc")
    assert parse_code(message).text == "a"
    assert parse_code(message, blocks="all").text == "a\nb\nc"


def test_whole_message_as_code():
    assert parse_code(said("print(1)\nx = 2"), whole=True) == Action(text="print(1)\nx = 2")
    assert parse_code(said("```python\nx\n```"), whole=True) == Action(text="x")
    assert parse_code(said("  "), whole=True).error
    assert parse_code(said("print(1)")).error


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "message is empty"),
        ("I would print.", "no code block"),
        ("```python\n \n```", "code block is empty"),
        ("```bash\nls\n```", "Found a bash block"),
        ("```", "code block is empty"),
    ],
)
def test_no_code_is_an_error_that_says_what_to_write(text, words):
    action = parse_code(said(text))
    assert words in action.error
    assert "```python" in action.error
    assert action.text == ""
    assert action.tool_calls == ()


def test_message_cut_while_thinking():
    assert "while thinking" in parse_code(said("", thinking="hm")).error
    assert "while thinking" in parse_tool_calls(said("", thinking="hm")).error


def test_tool_calls():
    action = parse_tool_calls(said("Let me.\n" + call() + "\n" + call("now", {})), TOOLS)
    assert action.tool_calls == (ToolCall("add", {"a": 1, "b": 2}), ToolCall("now", {}))
    assert action.error == ""


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}</tool_call>',  # as a string
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}',  # cut before the closing tag
        '<tool_call>{"name": "add", "arguments": {"a": 1.0, "b": 2}}</tool_call>',  # a whole number
        '<tool_call>{"arguments": {"b": 2, "a": 1}, "name": "add", "id": 7}</tool_call>',
    ],
)
def test_forms_that_are_accepted(text):
    assert parse_tool_calls(said(text), TOOLS).tool_calls == (ToolCall("add", {"a": 1, "b": 2}),)


def test_closing_tag_inside_a_string():
    text = '<tool_call>{"name": "say", "arguments": {"text": "</tool_call> <tool_call>"}}</tool_call>'
    action = parse_tool_calls(said(text))
    assert action.tool_calls == (ToolCall("say", {"text": "</tool_call> <tool_call>"}),)


@pytest.mark.parametrize("name", ["now", "none"])
def test_missing_arguments_are_none_given(name):
    tools = [{"name": "now"}, {"name": "none", "parameters": None}]
    for body in (f'{{"name": "{name}"}}', f'{{"name": "{name}", "arguments": null}}'):
        assert parse_tool_calls(said(f"<tool_call>{body}</tool_call>"), tools).tool_calls == (
            ToolCall(name, {}),
        )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('<tool_call>{"name": "add", "arguments": {"a": ', "ended before </tool_call>"),
        ('<tool_call>{"name": "add", "arguments": {"a": </tool_call>', "cannot be read"),
        ("<tool_call></tool_call>", "cannot be read"),
        ("<tool_call>", "cannot be read"),
        ("<tool_call>add(1, 2)</tool_call>", "cannot be read"),
        ('<tool_call>[{"name": "add"}]</tool_call>', "expected an object"),
        ('<tool_call>{"arguments": {}}</tool_call>', "expected an object"),
        ('<tool_call>{"name": "", "arguments": {}}</tool_call>', "expected an object"),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', "expected an object"),
        ('<tool_call>{"name": "add", "arguments": [1, 2]}</tool_call>', "must be an object, got list"),
        ('<tool_call>{"name": "add", "arguments": "a=1"}</tool_call>', "string that is not JSON"),
        ('<tool_call>{"name": "add", "arguments": {"a": NaN, "b": 1}}</tool_call>', "NaN is not JSON"),
        ('<tool_call>{"name": "add", "arguments": {"a": 1e999, "b": 1}}</tool_call>', "1e999 is too large"),
        ('<tool_call>{"name": "add", "arguments": "{\\"a\\": -1e999}"}</tool_call>', "-1e999 is too large"),
        ('<tool_call>{"name": "add", "arguments": {}} and more</tool_call>', "unexpected text"),
        (call("ad"), "Did you mean 'add'?"),
        (call("zzz"), "Tools: add, now"),
        (call("add", {"a": 1}), "needs the argument(s) b"),
        (call("add", {"a": "1", "b": 2}), "argument 'a' must be integer, got string"),
        (call("add", {"a": True, "b": 2}), "got boolean true"),
        (call("add", {"a": 1.5, "b": 2}), "must be integer, got number 1.5"),
        (call("add", {"a": None, "b": 2}), "got null null"),
        (call() + call("add", {}), "Tool call 2 was not run"),
        ("I call add.", "Found no tool call"),
        ("", "Found no tool call"),
        ("<tool_call>" + "[" * 100_000, "nested too deeply"),
        ('<tool_call>{"name": "add", "arguments": {"a": ' + "9" * 5000 + "}}", "cannot be read"),
    ],
)
def test_faulty_calls_are_errors_without_calls(text, words):
    action = parse_tool_calls(said(text), TOOLS)
    assert words in action.error
    assert action.tool_calls == ()
    assert action.text == ""
    assert len(action.error) < 600


def test_enumerations_and_closed_argument_lists():
    parameters = {
        "properties": {
            "unit": {"type": "string", "enum": ["C", "F"]},
            "x": {"type": ["integer", "null"]},
            "y": True,
        },
        "additionalProperties": False,
    }
    tools = [{"name": "heat", "parameters": parameters}]

    def error(arguments):
        return parse_tool_calls(said(call("heat", arguments)), tools).error

    assert "must be one of" in error({"unit": "K"})
    assert "takes no argument 'z'; it takes unit, x, y" in error({"z": 1})
    assert "must be integer or null" in error({"x": "1"})
    assert error({"x": None, "unit": "C", "y": [1]}) == ""


def test_text_answers_where_they_are_allowed():
    assert parse_tool_calls(said("It is 3."), TOOLS, text_ok=True) == Action(text="It is 3.")
    assert parse_tool_calls(said(" "), TOOLS, text_ok=True).error


def test_calls_that_are_already_parsed_are_checked_too():
    good = Message("assistant", "", tool_calls=(ToolCall("now", {}),))
    assert parse_tool_calls(good, TOOLS).tool_calls == good.tool_calls
    assert parse_tool_calls(Message("assistant", "", tool_calls=(ToolCall("x", {}),)), TOOLS).error


def test_no_text_raises_and_every_failure_speaks():
    """2,000 random splices of markup: an action, or an error text with nothing else."""
    pieces = [
        "```",
        "```python\n",
        "\n",
        "<tool_call>",
        "</tool_call>",
        '{"name": "add"',
        ', "arguments": ',
        '"',
        "}",
    ]
    pieces += ["{", "[", "\\", "1", "é", "\x00", "print(1)", " ", "<think>", "null", "NaN", "\ud800"]
    rng = random.Random(0)
    for _ in range(2000):
        message = said("".join(rng.choices(pieces, k=rng.randint(0, 12))))
        for action in (parse_code(message, blocks="all"), parse_tool_calls(message, TOOLS)):
            assert bool(action.error) != bool(action.text.strip() or action.tool_calls)
