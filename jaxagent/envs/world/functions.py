"""The scripted agent of chains: it solves by functions, and calls those that an earlier task of the chain has left.

    q1   def pay(amount, to): …                       ok
         pay(12, "mezo") and done
    q2   pay(7, "kato") and done                       defined already

At the easy level each kind has one function; at the full level `pages`, which most solutions need, is what is reused.
`sloppiness` is the chance of an episode from which nothing can be learnt about reuse: without a function, with its
definition repeated, or without an end. Whoever rejects samples finds something to reject.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection
from dataclasses import dataclass

from jaxagent.envs.world.expert import Move, ScriptedPolicy, plan
from jaxagent.envs.world.goal import CodeStep
from jaxagent.envs.world.tasks import LEVELS, build
from jaxagent.types import Task


@dataclass(frozen=True)
class Method:
    """A kind's function. asked: the instruction's form; call: the call, from its groups; answers: whether the result is
    the task's answer."""

    name: str
    asked: str
    body: str
    call: str
    answers: bool = False

    @property
    def definition(self) -> str:
        parameters = re.sub(r'"?\{(\w+)\}"?', r"\1", self.call[self.call.index("(") :])
        return f"def {self.name}{parameters}:\n  " + self.body.replace("\n", "\n  ")


LOGIN = 'tok = apis.{app}.login(pw=apis.me.pw(app="{app}"))'
BANK, SHOP = LOGIN.format(app="bank"), LOGIN.format(app="shop")

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "phone",
            r"phone of (?P<name>\w+)",
            'return apis.book.show(name=name)["phone"]',
            'phone("{name}")',
            True,
        ),
        Method(
            "add",
            r"add (?P<name>\w+) (?P<phone>\w+) to book",
            "apis.book.add(name=name, phone=phone)",
            'add("{name}", "{phone}")',
        ),
        Method(
            "edit",
            r"set phone of (?P<name>\w+) to (?P<phone>\w+)",
            "apis.book.edit(name=name, phone=phone)",
            'edit("{name}", "{phone}")',
        ),
        Method(
            "copy",
            r"copy note (?P<title>\w+) to todo",
            "apis.todo.add(text=apis.notes.show(title=title))",
            'copy("{title}")',
        ),
        Method(
            "finish",
            r"finish todos tagged (?P<tag>\w+)",
            "for i in apis.todo.find(tag=tag):\n  apis.todo.finish(id=i)",
            'finish("{tag}")',
        ),
        Method(
            "count",
            r"count todos tagged (?P<tag>\w+)",
            "return len(apis.todo.find(tag=tag))",
            'count("{tag}")',
            True,
        ),
        Method(
            "wipe",
            r"delete notes tagged (?P<tag>\w+)",
            "for t in apis.notes.find(tag=tag):\n  apis.notes.delete(title=t)",
            'wipe("{tag}")',
        ),
        Method("balance", "bank balance", f"{BANK}\nreturn apis.bank.balance(tok=tok)", "balance()", True),
        Method(
            "pay",
            r"pay (?P<amount>\d+) to (?P<to>\w+)",
            f"{BANK}\napis.bank.pay(to=to, amount=amount, tok=tok)",
            'pay({amount}, "{to}")',
        ),
        Method(
            "paynote",
            r"pay note (?P<title>\w+)",
            f"{BANK}\nto, much = apis.notes.show(title=title).split()\n"
            "apis.bank.pay(to=to, amount=int(much), tok=tok)",
            'paynote("{title}")',
        ),
        Method(
            "sent",
            r"sum paid to (?P<to>\w+)",
            f"{BANK}\nreturn sum(apis.bank.log(to=to, tok=tok))",
            'sent("{to}")',
            True,
        ),
        Method(
            "paytown",
            r"pay (?P<amount>\d+) to all in (?P<town>\w+)",
            f"{BANK}\nfor p in apis.book.find(town=town):\n  apis.bank.pay(to=p, amount=amount, tok=tok)",
            'paytown({amount}, "{town}")',
        ),
        Method(
            "price",
            r"price of (?P<item>\w+)",
            "return apis.shop.price(item=item)",
            'price("{item}")',
            True,
        ),
        Method(
            "buy",
            r"buy (?P<item>\w+)",
            f"{SHOP}\napis.shop.buy(item=item, tok=tok)",
            'buy("{item}")',
        ),
    )
}


def chain_policy(
    task: Task, rng: random.Random, defined: Collection[str] = (), sloppiness: float = 0.0
) -> ScriptedPolicy:
    """An expert for one task of a chain. defined: names of functions that are there already."""
    _, goal = build(task)
    easy = task.env == LEVELS["easy"]
    flaw = rng.choice(("plain", "again", "unfinished")) if rng.random() < sloppiness else ""
    known = () if flaw == "again" else defined
    if not easy:
        steps = plan(task, goal, defined=known)
    elif flaw == "plain":
        steps = plan(task, goal)
    else:
        steps = by_function(METHODS[task.type], goal.instruction, known)
    if flaw == "unfinished":
        steps = steps[: rng.randrange(len(steps))]
    return ScriptedPolicy(task, [Move(step) for step in steps], rng)


def by_function(method: Method, instruction: str, defined: Collection[str]) -> list[CodeStep]:
    """Define the kind's function unless it is there, then call it and end."""
    found = re.fullmatch(method.asked, instruction)
    if found is None:
        raise ValueError(f"{instruction!r} is no task of kind {method.name!r}")
    call = method.call.format(**found.groupdict())
    last = f"apis.me.done(answer={call})" if method.answers else f"{call}\napis.me.done()"
    return [last] if method.name in defined else [method.definition, last]
