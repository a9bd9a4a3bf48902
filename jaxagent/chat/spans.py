"""Which tokens of a sampled message are its action. In: ids, their decoder, the parsed `Action`. Out: a slice, or None.

    ids     <think>|I| need|</think>|<action>|go| to| desk| 1</|action|>|<end>       Action("go to desk 1")
    action     0    0   0      0        0      1   1    1     1     0    0   0

A token that holds a part of the action counts, whatever else it holds. Where the whole message is the action, all its
tokens are, the end-of-turn too: stopping is part of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from jaxagent.chat.tags import THOUGHT, first_tag
from jaxagent.chat.tools import CALL_CLOSE, CALL_OPEN, FENCE, FENCE_HEAD
from jaxagent.types import Action

Decode = Callable[[Sequence[int]], str]
TAG = re.compile("<action>", re.IGNORECASE)
MOST_WORDS = 2000  # of an action that is looked for word by word


def action_tokens(
    ids: Sequence[int], action: Action, *, decode: Decode, stop_ids: Sequence[int]
) -> slice | None:
    """The action's place in the sampled ids of a message; None where it cannot be located."""
    said = list(ids[:-1]) if len(ids) and ids[-1] in stop_ids else list(ids)
    text = decode(said)
    span = action_span(text, action)
    if span is None:
        return None
    if not text[: span[0]].strip() and not text[span[1] :].strip():
        return slice(0, len(ids))
    return span_tokens(said, text, span, decode=decode)


def action_span(text: str, action: Action) -> tuple[int, int] | None:
    """(start, end) of the action in a message's text: tool calls with what stands between them, else the first place
    after the thinking, and inside the tag or the fence if there is one, that reads as the action does."""
    if action.error:
        return None
    start = text.rfind(THOUGHT) + len(THOUGHT) if THOUGHT in text else 0
    if action.tool_calls:
        first, last = text.find(CALL_OPEN, start), text.rfind(CALL_CLOSE)
        return (first, last + len(CALL_CLOSE)) if 0 <= first < last else None
    wanted = action.text.strip()
    if not wanted:
        return None
    start = _inside(text, start)
    exact = text.find(wanted, start)
    return (exact, exact + len(wanted)) if exact >= 0 else _by_words(text, wanted, start)


def _inside(text: str, start: int) -> int:
    """Where the action can begin: behind <action>, or behind the head of the first fence."""
    tag = TAG.search(text, start)
    if tag is not None and first_tag(text[start:].lower(), "action") is not None:
        return tag.end()
    fence = text.find(FENCE, start)
    head = FENCE_HEAD.match(text, fence + len(FENCE)) if fence >= 0 else None
    if head is not None:
        return head.end()
    return fence + len(FENCE) if fence >= 0 else start


def _by_words(text: str, wanted: str, start: int) -> tuple[int, int] | None:
    """Parsers lower the case and collapse blanks: the same words, in any case, with any blanks between them."""
    words = wanted.split()
    if len(words) > MOST_WORDS:
        return None
    found = re.compile(r"\s+".join(map(re.escape, words)), re.IGNORECASE).search(text, start)
    return found.span() if found else None


def span_tokens(ids: Sequence[int], text: str, span: tuple[int, int], *, decode: Decode) -> slice:
    """Tokens that hold characters of text[start:end], by bisection: the text that a prefix of the ids settles only
    grows. A character whose bytes lie in several tokens is settled by the last of them; all of them count."""
    start, end = span
    settled: dict[int, int] = {0: 0}

    def shared(n: int) -> int:
        if n not in settled:
            settled[n] = _common_prefix(decode(ids[:n]), text)
        return settled[n]

    first = _bisect(len(ids), lambda i: shared(i + 1) > start or shared(i) >= start)
    return slice(first, _bisect(len(ids), lambda i: shared(i) >= end))


def _bisect(size: int, holds: Callable[[int], bool]) -> int:
    """The smallest i in 0..size-1 for which a monotone condition holds, else size."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _common_prefix(a: str, b: str) -> int:
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return _bisect(n, lambda i: a[: i + 1] != b[: i + 1])
