"""Tags in messages: which one counts, and that no text takes long."""

import time

from jaxagent.chat.tags import after_thinking, first_tag


def test_the_first_closed_tag_counts():
    assert first_tag("a <x> b <x>c</x></x>", "x") == (2, " b <x>c")
    assert first_tag("</x><x>1</x>", "x") == (4, "1")
    for text in ("", "x", "<x>", "</x>", "</x><x>", "<X>1</X>", "<y>1</x>"):
        assert first_tag(text, "x") is None


def test_thinking_ends_at_its_last_closing_tag():
    assert after_thinking("<think>a</think>b</think>c") == "c"
    assert after_thinking("<think>a") == "<think>a"


def test_no_text_takes_long():
    start = time.process_time()
    for text in ("<x>" * 300_000, "</x>" * 300_000, "<" * 10**6):
        assert first_tag(text, "x") is None
    assert time.process_time() - start < 1.0
