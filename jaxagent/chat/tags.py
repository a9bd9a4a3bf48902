"""Tags in a sampled message. In: a text and a tag's name. Out: where the first closed one stands, and what is in it.

    "<think>So.</think><action>look</action>"        tag action  ->  (19, "look")

Plain `find`: linear in any text a policy may write. `<action>(.*?)</action>` as a regular expression takes seconds for
some thousand opening tags that nothing closes.
"""

from __future__ import annotations

THOUGHT = "</think>"


def first_tag(text: str, name: str) -> tuple[int, str] | None:
    """(place, body) of the first `<name>` and the `</name>` that closes it; None without both. Case matters."""
    opening, closing = f"<{name}>", f"</{name}>"
    start = text.find(opening)
    end = text.find(closing, start)
    return (start, text[start + len(opening) : end]) if 0 <= start < end else None


def after_thinking(text: str) -> str:
    """What follows the last `</think>`; the whole text without one."""
    return text.rpartition(THOUGHT)[2]
