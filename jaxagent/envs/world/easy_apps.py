"""The easy level's apps: short names, short results, one password each. For models trained from scratch."""

from __future__ import annotations

from jaxagent.envs.world.apps import api_docs
from jaxagent.envs.world.engine import Api, App, Row, World


def find_row(world: World, table: str, field: str, value: str) -> Row:
    row = next((row for row in world.rows(table) if row[field] == value), None)
    if row is None:
        raise world.refuse(404, f"no {value}")
    return row


# --- me ---------------------------------------------------------------------------------------------------


def pw(world: World, app: str):
    """Show my password for an app.

    app: name of the app
    """
    if app not in world.passwords:
        raise world.refuse(404, f"no pw for {app}")
    return world.passwords[app]


def done(world: World, answer: object = None):
    """End the task.

    answer: the answer, if the task asks for one
    """
    if world.completed:
        raise world.refuse(409, "already done")
    world.completed, world.status, world.answer = True, "success", answer
    return "ok"


# --- book -------------------------------------------------------------------------------------------------


def show(world: World, name: str):
    """Show a person.

    name: name of the person
    """
    row = find_row(world, "book", "name", name)
    return {"name": row["name"], "phone": row["phone"]}


def find(world: World, town: str):
    """List the names of the people of a town.

    town: the town
    """
    return [row["name"] for row in world.rows("book") if row["town"] == town]


def add(world: World, name: str, phone: str):
    """Add a person.

    name: name of the person
    phone: phone number
    """
    world.add("book", name=name, phone=phone, town="")
    return "ok"


def edit(world: World, name: str, phone: str):
    """Change the phone number of a person.

    name: name of the person
    phone: the new number
    """
    world.change("book", find_row(world, "book", "name", name)["id"], phone=phone)
    return "ok"


BOOK = App(
    "book",
    "People and phone numbers.",
    (
        Api(show, {"name": "string", "phone": "string"}),
        Api(find, ["string"]),
        Api(add, "string"),
        Api(edit, "string"),
    ),
)


# --- notes ------------------------------------------------------------------------------------------------


def note_show(world: World, title: str):
    """Show the text of a note.

    title: title of the note
    """
    return find_row(world, "notes", "title", title)["text"]


def note_find(world: World, tag: str):
    """List the titles of the notes with a tag.

    tag: the tag
    """
    return [row["title"] for row in world.rows("notes") if row["tag"] == tag]


def note_add(world: World, title: str, text: str):
    """Add a note.

    title: title of the note
    text: its text
    """
    world.add("notes", title=title, text=text, tag="")
    return "ok"


def note_delete(world: World, title: str):
    """Delete a note.

    title: title of the note
    """
    world.remove("notes", find_row(world, "notes", "title", title)["id"])
    return "ok"


# --- todo -------------------------------------------------------------------------------------------------


def todo_find(world: World, tag: str):
    """List the ids of the todos with a tag.

    tag: the tag
    """
    return [row["id"] for row in world.rows("todo") if row["tag"] == tag]


def todo_add(world: World, text: str):
    """Add a todo.

    text: what to do
    """
    world.add("todo", text=text, tag="", finished=False)
    return "ok"


def todo_finish(world: World, id: int):
    """Finish a todo.

    id: id of the todo
    """
    world.change("todo", world.get("todo", id, "todo")["id"], finished=True)
    return "ok"


# --- bank and shop ----------------------------------------------------------------------------------------


def login_bank(world: World, pw: str):
    """Log in; returns the token that the other calls need.

    pw: my password
    """
    return world.login("bank", "", pw)


def balance(world: World, tok: str):
    """Show my balance.

    tok: token of the login
    """
    return world.get("bank", 1, "account")["balance"]


def pay(world: World, to: str, amount: int, tok: str):
    """Pay a person.

    to: name of the person
    amount: how much
    tok: token of the login
    """
    account = world.get("bank", 1, "account")
    if not 0 < amount <= account["balance"]:
        raise world.refuse(422, "bad amount")
    world.change("bank", 1, balance=account["balance"] - amount)
    world.add("paid", to=to, amount=amount)
    return "ok"


def log(world: World, to: str, tok: str):
    """List the amounts that I paid to a person.

    to: name of the person
    tok: token of the login
    """
    return [row["amount"] for row in world.rows("paid") if row["to"] == to]


def login_shop(world: World, pw: str):
    """Log in; returns the token that the other calls need.

    pw: my password
    """
    return world.login("shop", "", pw)


def price(world: World, item: str):
    """Show the price of an item.

    item: name of the item
    """
    return find_row(world, "shop", "item", item)["price"]


def buy(world: World, item: str, tok: str):
    """Buy an item.

    item: name of the item
    tok: token of the login
    """
    world.add("bought", item=find_row(world, "shop", "item", item)["item"])
    return "ok"


EASY_APPS = {
    app.name: app
    for app in (
        api_docs.APP,
        App("me", "Passwords and the end of the task.", (Api(pw, "string"), Api(done, "string"))),
        BOOK,
        App(
            "notes",
            "Short notes.",
            (
                Api(note_show, "string", "show"),
                Api(note_find, ["string"], "find"),
                Api(note_add, "string", "add"),
                Api(note_delete, "string", "delete"),
            ),
        ),
        App(
            "todo",
            "Things to do.",
            (
                Api(todo_find, [1], "find"),
                Api(todo_add, "string", "add"),
                Api(todo_finish, "string", "finish"),
            ),
        ),
        App(
            "bank",
            "Money.",
            (Api(login_bank, "string", "login"), Api(balance, 1), Api(pay, "string"), Api(log, [1])),
        ),
        App(
            "shop", "Things to buy.", (Api(login_shop, "string", "login"), Api(price, 1), Api(buy, "string"))
        ),
    )
}
