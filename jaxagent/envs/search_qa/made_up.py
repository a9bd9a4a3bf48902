"""A made-up world of people, towns and countries, for tests and tiny models. Out: texts, and questions about them.

"Where was X born?" needs one search; "In which country was X born?" needs a second one, for the town. No name occurs
outside this file, so nothing can be known by heart.
"""

from __future__ import annotations

from random import Random
from typing import Any

FIRST = ("Arlo", "Bena", "Cilo", "Dara", "Eno", "Fira", "Goro", "Hila", "Imo", "Jona", "Kiro", "Lena")
LAST = ("Mavik", "Nordel", "Ostrin", "Pelak", "Quist")
TOWNS = ("Tavor", "Ulmek", "Vastin", "Worle", "Xandor", "Yelm", "Zorin", "Askel", "Bromo", "Corda")
COUNTRIES = ("Alvaria", "Borland", "Cestia", "Dunmark")
TRADES = ("painter", "pilot", "baker", "singer", "doctor")


def _people() -> list[tuple[str, str, str]]:
    """(name, town, trade), the same in every process."""
    rng = Random("search_qa/people")
    names = [f"{first} {last}" for first in FIRST for last in LAST]
    return [(name, rng.choice(TOWNS), rng.choice(TRADES)) for name in names]


def _country(town: str) -> str:
    return COUNTRIES[TOWNS.index(town) % len(COUNTRIES)]


def made_up_texts() -> list[tuple[str, str]]:
    """(title, text) of every person and town."""
    people = [(name, f"{name} is a {trade}. {name} was born in {town}.") for name, town, trade in _people()]
    towns = [(town, f"{town} is a town in {_country(town)}.") for town in TOWNS]
    return people + towns


def made_up_questions() -> list[dict[str, Any]]:
    rows = []
    for name, town, trade in _people():
        asked = (
            ("town", f"Where was {name} born?", town, [name]),
            ("trade", f"What is the trade of {name}?", trade, [name]),
            ("country", f"In which country was {name} born?", _country(town), [name, town]),
        )
        rows += [
            {
                "id": f"{kind}/{name}",
                "question": question,
                "answers": [answer],
                "titles": titles,
                "type": kind,
            }
            for kind, question, answer, titles in asked
        ]
    return rows
