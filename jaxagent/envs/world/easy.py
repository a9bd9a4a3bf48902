"""Tasks of the easy level: tiny worlds, one-line instructions, two to four turns, unlimited seeds.

A kind is a function (draw, tables) -> Goal that plants what it needs in the tables. Names and numbers of
training tasks and of held-out tasks come from disjoint pools, so a policy has to copy, not to remember.

    instruction  pay 12 to mezo
    agent        print(apis.me.pw(app="bank"))                       observes  hofu
                 tok = apis.bank.login(pw="hofu")
                 apis.bank.pay(to="mezo", amount=12, tok=tok)        observes  ok
                 apis.me.done()
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from zlib import crc32

from jaxagent.envs.world.easy_apps import EASY_APPS
from jaxagent.envs.world.engine import Tables, World
from jaxagent.envs.world.goal import Goal, added, removed, updated

NAMES = [
    a + b + c + d for a in "bdfghklmnprstvz" for b in "aeiou" for c in "bdfghklmnprstvz" for d in "aeiou"
]
VERBS = ("fix", "buy", "call", "sell", "wash", "find")
DONE = "apis.me.done()"


class Draw:
    """Random names and numbers of one world, made for copying by content.

    A small model copies by looking for the last token that it wrote and taking the next. 3635, or tazu beside tari,
    would leave it in doubt: names differ in their first syllable, and none repeats a syllable, no number a digit.
    """

    def __init__(self, seed: str, held_out: bool):
        self.random = random.Random(seed)
        self.used: set[str] = set()
        self.held_out = held_out

    def name(self) -> str:
        while True:
            index = self.random.randrange(len(NAMES))
            name = NAMES[index]
            first, second = name[:2], name[2:]
            if (
                (crc32(name.encode()) % 5 == 0) == self.held_out
                and first not in self.used
                and first != second
            ):
                self.used.add(first)
                return name

    def phone(self) -> str:
        return str(self.number(1000, 9999))

    def number(self, low: int, high: int) -> int:
        while True:
            number = self.random.randint(low, high)
            if len(set(str(number))) == len(str(number)):
                return number


def fresh(draw: Draw) -> tuple[Tables, dict[str, str]]:
    """Tables of a tiny world, and its passwords."""
    towns, tags = [draw.name() for _ in range(2)], [draw.name() for _ in range(2)]

    def pick(options: Sequence[str]) -> str:
        return draw.random.choice(options)

    def table(size: int, row: Callable[[], dict]) -> dict[int, dict]:
        start = draw.number(2, 60)
        return {key: {"id": key, **row()} for key in range(start, start + size)}

    tables = {
        "book": table(5, lambda: {"name": draw.name(), "phone": draw.phone(), "town": pick(towns)}),
        "notes": table(5, lambda: {"title": draw.name(), "text": draw.name(), "tag": pick(tags)}),
        "todo": table(
            6, lambda: {"text": f"{pick(VERBS)} {draw.name()}", "tag": pick(tags), "finished": False}
        ),
        "bank": {1: {"id": 1, "balance": draw.number(300, 999)}},
        "paid": {},
        "shop": table(4, lambda: {"item": draw.name(), "price": draw.number(2, 99)}),
        "bought": {},
    }
    people = [row["name"] for row in tables["book"].values()]
    tables["paid"] = table(5, lambda: {"to": pick(people), "amount": draw.number(2, 99)})
    return tables, {"bank": draw.name(), "shop": draw.name()}


def one(draw: Draw, tables: Tables, table: str) -> dict:
    return draw.random.choice(list(tables[table].values()))


def tagged(draw: Draw, tables: Tables, table: str) -> tuple[str, list[dict]]:
    """A tag, and its 2-4 rows of the table."""
    rows = list(tables[table].values())
    tag, other = rows[0]["tag"], draw.name()
    chosen = draw.random.sample(rows, draw.number(2, 4))
    for row in rows:
        row["tag"] = tag if row in chosen else other
    return tag, chosen


def show_pw(app: str) -> str:
    return f'print(apis.me.pw(app="{app}"))'


def login(app: str, rest: str) -> Callable[[Sequence[str]], str]:
    """A step that logs in with the password just seen and goes on."""
    return lambda seen: f'tok = apis.{app}.login(pw="{seen[-1]}")\n{rest}'


def answer_number(seen: Sequence[str]) -> str:
    return f"apis.me.done(answer={seen[-1]})"


def paid(tables: Tables, *payments: tuple[str, int]) -> tuple:
    balance = tables["bank"][1]["balance"] - sum(amount for _, amount in payments)
    return (
        updated("bank", 1, balance=balance),
        *(added("paid", to=to, amount=amount) for to, amount in payments),
    )


# --- kinds ------------------------------------------------------------------------------------------------


def phone(draw: Draw, tables: Tables) -> Goal:
    row = one(draw, tables, "book")
    steps = (
        f'print(apis.book.show(name="{row["name"]}"))',
        lambda seen: f'apis.me.done(answer="{json.loads(seen[-1])["phone"]}")',
    )
    return Goal(f"phone of {row['name']}", steps, answer=row["phone"])


def add(draw: Draw, tables: Tables) -> Goal:
    name, number = draw.name(), draw.phone()
    steps = (f'apis.book.add(name="{name}", phone="{number}")', DONE)
    return Goal(f"add {name} {number} to book", steps, (added("book", name=name, phone=number),))


def edit(draw: Draw, tables: Tables) -> Goal:
    row, number = one(draw, tables, "book"), draw.phone()
    steps = (f'apis.book.edit(name="{row["name"]}", phone="{number}")', DONE)
    return Goal(f"set phone of {row['name']} to {number}", steps, (updated("book", row["id"], phone=number),))


def copy(draw: Draw, tables: Tables) -> Goal:
    row = one(draw, tables, "notes")
    steps = (
        f'print(apis.notes.show(title="{row["title"]}"))',
        lambda seen: f'apis.todo.add(text="{seen[-1]}")',
        DONE,
    )
    return Goal(f"copy note {row['title']} to todo", steps, (added("todo", text=row["text"]),))


def finish(draw: Draw, tables: Tables) -> Goal:
    tag, rows = tagged(draw, tables, "todo")
    steps = (f'for i in apis.todo.find(tag="{tag}"):\n  apis.todo.finish(id=i)', DONE)
    return Goal(
        f"finish todos tagged {tag}", steps, tuple(updated("todo", row["id"], finished=True) for row in rows)
    )


def count(draw: Draw, tables: Tables) -> Goal:
    tag, rows = tagged(draw, tables, "todo")
    steps = (f'print(len(apis.todo.find(tag="{tag}")))', answer_number)
    return Goal(f"count todos tagged {tag}", steps, answer=len(rows))


def wipe(draw: Draw, tables: Tables) -> Goal:
    tag, rows = tagged(draw, tables, "notes")
    steps = (f'for t in apis.notes.find(tag="{tag}"):\n  apis.notes.delete(title=t)', DONE)
    return Goal(f"delete notes tagged {tag}", steps, tuple(removed("notes", row["id"]) for row in rows))


def balance(draw: Draw, tables: Tables) -> Goal:
    steps = (show_pw("bank"), login("bank", "print(apis.bank.balance(tok=tok))"), answer_number)
    return Goal("bank balance", steps, answer=tables["bank"][1]["balance"])


def pay(draw: Draw, tables: Tables) -> Goal:
    name, amount = one(draw, tables, "book")["name"], draw.number(2, 99)
    steps = (show_pw("bank"), login("bank", f'apis.bank.pay(to="{name}", amount={amount}, tok=tok)'), DONE)
    return Goal(f"pay {amount} to {name}", steps, paid(tables, (name, amount)))


def paynote(draw: Draw, tables: Tables) -> Goal:
    row, name, amount = one(draw, tables, "notes"), one(draw, tables, "book")["name"], draw.number(2, 99)
    row["text"] = f"{name} {amount}"

    def settle(seen: Sequence[str]) -> str:
        to, much = seen[-2].split()
        return login("bank", f'apis.bank.pay(to="{to}", amount={much}, tok=tok)')(seen)

    steps = (f'print(apis.notes.show(title="{row["title"]}"))', show_pw("bank"), settle, DONE)
    return Goal(f"pay note {row['title']}", steps, paid(tables, (name, amount)))


def sent(draw: Draw, tables: Tables) -> Goal:
    name = one(draw, tables, "paid")["to"]
    total = sum(row["amount"] for row in tables["paid"].values() if row["to"] == name)
    steps = (
        show_pw("bank"),
        login("bank", f'print(sum(apis.bank.log(to="{name}", tok=tok)))'),
        answer_number,
    )
    return Goal(f"sum paid to {name}", steps, answer=total)


def paytown(draw: Draw, tables: Tables) -> Goal:
    town, amount = one(draw, tables, "book")["town"], draw.number(2, 9)
    people = [row["name"] for row in tables["book"].values() if row["town"] == town]
    loop = f'for p in apis.book.find(town="{town}"):\n  apis.bank.pay(to=p, amount={amount}, tok=tok)'
    steps = (show_pw("bank"), login("bank", loop), DONE)
    return Goal(f"pay {amount} to all in {town}", steps, paid(tables, *((name, amount) for name in people)))


def price(draw: Draw, tables: Tables) -> Goal:
    row = one(draw, tables, "shop")
    steps = (f'print(apis.shop.price(item="{row["item"]}"))', answer_number)
    return Goal(f"price of {row['item']}", steps, answer=row["price"])


def buy(draw: Draw, tables: Tables) -> Goal:
    item = one(draw, tables, "shop")["item"]
    steps = (show_pw("shop"), login("shop", f'apis.shop.buy(item="{item}", tok=tok)'), DONE)
    return Goal(f"buy {item}", steps, (added("bought", item=item),))


EASY_KINDS: dict[str, tuple[int, Callable[[Draw, Tables], Goal]]] = {  # name -> difficulty, generator
    "phone": (1, phone),
    "pay": (2, pay),
    "copy": (2, copy),
    "finish": (2, finish),
    "balance": (2, balance),
    "add": (1, add),
    "wipe": (2, wipe),
    "paynote": (3, paynote),
    "count": (1, count),
    "edit": (1, edit),
}
EASY_CHALLENGE: dict[str, tuple[int, Callable[[Draw, Tables], Goal]]] = {
    "price": (1, price),
    "sent": (3, sent),
    "buy": (2, buy),
    "paytown": (3, paytown),
}


def build_easy(kind: str, seed: str, held_out: bool) -> tuple[World, Goal]:
    """The world and the goal of one task; the same arguments give the same ones."""
    draw = Draw(seed, held_out)
    tables, passwords = fresh(draw)
    _, make = (EASY_KINDS | EASY_CHALLENGE)[kind]
    goal = make(draw, tables)
    return World(EASY_APPS, tables, passwords=passwords, username=("",), brief=True), goal
