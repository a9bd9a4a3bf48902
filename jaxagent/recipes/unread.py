"""Options that were given and that nothing reads, for the validators of recipes: every option has an effect, or is
refused with the reason. A default that nobody wrote is never refused.
"""

from __future__ import annotations

from jaxagent.records import Record


def refuse_unread(options: Record, *names: str, read: bool, when: str) -> None:
    """Raise unless these options are `read`, or none of them was given. when: what they are read with."""
    given = sorted(options.model_fields_set & set(names))
    if given and not read:
        verb, drop = ("is", "it") if len(given) == 1 else ("are", "them")
        raise ValueError(f"{', '.join(given)} {verb} read with {when} only; drop {drop}")
