"""What a kind of task works on: a fresh world, a random stream for the task and one for its scenario.

A kind plants what its task needs in the tables, works out the intended changes or the answer from them, and
writes the instruction and the reference code. The code knows the instruction only: everything else it
looks up through the APIs, with `<app>_token` and `pages` already defined (expert.py).
"""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jaxagent.envs.world.engine import Row, Tables, World
from jaxagent.envs.world.goal import Change, Goal, added, updated
from jaxagent.envs.world.people import day

DONE = "apis.supervisor.complete_task()"
READ_NOTE = """
note_id = apis.notes.search_notes(query=<title>, access_token=notes_token)[0]["note_id"]
note = apis.notes.show_note(note_id=note_id, access_token=notes_token)
print(note)
"""


@dataclass(frozen=True)
class Scene:
    """`rng` differs between the three tasks of a scenario, `style` does not."""

    world: World
    rng: random.Random
    style: random.Random

    @property
    def tables(self) -> Tables:
        return self.world.tables

    def rows(self, table: str, **fields: Any) -> list[Row]:
        return [row for row in self.tables[table].values() if all(row[k] == v for k, v in fields.items())]

    def pick(self, table: str, **fields: Any) -> Row:
        return self.rng.choice(self.rows(table, **fields))

    def day(self, days: int) -> str:
        return day(datetime.fromisoformat(self.world.now), days)

    def plant(self, table: str, **fields: Any) -> Row:
        """Change nothing but add a row to the start state."""
        return self.tables[table][self.world.add(table, **fields)]


@dataclass(frozen=True)
class Kind:
    name: str
    difficulty: int
    make: Callable[[Scene], Goal]


def full_name(row: Row) -> str:
    return f"{row['first_name']} {row['last_name']}"


def fill(code: str, **values: Any) -> str:
    """Agent code from a template: `<name>` becomes the Python literal of values["name"]."""
    text = textwrap.dedent(code).strip("\n")
    return re.sub(r"<(\w+)>", lambda match: repr(values[match.group(1)]), text)


def find_contact(name: str) -> str:
    """Code that looks one contact up and shows it."""
    return fill(
        """
        person = apis.phone.search_contacts(query=<name>, access_token=phone_token)[0]
        print(person)
        """,
        name=name,
    )


def sent_money(scene: Scene, *payments: tuple[str, float, str]) -> tuple[Change, ...]:
    """The changes of payments (email, amount, description) from the person's account."""
    total = sum(amount for _, amount, _ in payments)
    balance = updated("bank.account", 1, balance=scene.tables["bank.account"][1]["balance"] - total)
    return balance, *(
        added("bank.payments", direction="sent", email=email, amount=amount, description=text)
        for email, amount, text in payments
    )


def sent_text(scene: Scene, person: Row, text: str) -> Change:
    return added("phone.messages", direction="sent", phone_number=person["phone_number"], text=text)


def sent_email(scene: Scene, recipient: str, subject: str, body: str) -> Change:
    return added("mail.emails", folder="sent", recipient=recipient, subject=subject, body=body)
