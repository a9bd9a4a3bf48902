"""Copy drills: short exchanges that teach a model trained from scratch to copy what it sees.

A tiny model finds the copying circuit ("induction") late or never from demonstrations alone, and without it every
name and number of a call is a guess. Three kinds, drawn at random:

    repeat   mezo 481 "hofu" lano                          →   mezo 481 "hofu" lano
    look up  {"mezo": 481, "hofu": "lano"} mezo            →   481
    field    {"name": "mezo", "code": "4817"} code         →   "4817"
"""

from __future__ import annotations

import json
from random import Random

from jaxagent.types import Message

CONSONANTS, VOWELS = "bcdfghjklmnpqrstvwxyz", "aeiou"


def drill(rng: Random) -> list[Message]:
    """One exchange: what is shown, and the copy."""
    shown, copy = rng.choice((_repeat, _look_up, _field))(rng)
    return [Message("user", shown), Message("assistant", copy)]


def _repeat(rng: Random) -> tuple[str, str]:
    shown = " ".join(_literal(rng) for _ in range(rng.randint(3, 8)))
    return shown, shown


def _look_up(rng: Random) -> tuple[str, str]:
    keys = [_word(rng) for _ in range(rng.randint(3, 6))]
    values = [_literal(rng) for _ in keys]
    asked = rng.randrange(len(keys))
    table = ", ".join(f'"{key}": {value}' for key, value in zip(keys, values))
    return f"{{{table}}} {keys[asked]}", values[asked]


def _field(rng: Random) -> tuple[str, str]:
    """Read a field of a JSON record: texts, numbers, and numbers written as texts."""
    record = {
        _word(rng): rng.choice((_word(rng), rng.randint(1, 999), str(rng.randint(1000, 9999))))
        for _ in range(3)
    }
    asked = rng.choice(list(record))
    return f"{json.dumps(record)} {asked}", json.dumps(record[asked])


def _word(rng: Random) -> str:
    return "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.randint(1, 3)))


def _literal(rng: Random) -> str:
    """A bare word, a quoted word or a number."""
    kind = rng.randrange(3)
    return str(rng.randint(1, 9999)) if kind == 0 else f'"{_word(rng)}"' if kind == 1 else _word(rng)
