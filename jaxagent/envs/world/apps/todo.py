"""Lists of things to do."""

from __future__ import annotations

from jaxagent.envs.world.apps.account import MESSAGE, login_of, logout_of
from jaxagent.envs.world.engine import Api, App, World, page, view

LIST = {"list_id": 1, "name": "string"}
ITEM = {
    "item_id": 1,
    "list_id": 1,
    "title": "string",
    "due_date": "string",
    "priority": "string",
    "is_completed": False,
}
PRIORITIES = ("low", "medium", "high")


def show_lists(world: World, access_token: str):
    """Show all lists.

    access_token: access token from todo login
    """
    return [view(row, *LIST) for row in world.rows("todo.lists")]


def create_list(world: World, name: str, access_token: str):
    """Create a list.

    name: name of the list
    access_token: access token from todo login
    """
    if any(row["name"] == name for row in world.rows("todo.lists")):
        raise world.refuse(409, f"A list named {name} already exists.")
    return {"message": "List created.", "list_id": world.add("todo.lists", name=name)}


def delete_list(world: World, list_id: int, access_token: str):
    """Delete a list with all its items.

    list_id: id of the list
    access_token: access token from todo login
    """
    world.get("todo.lists", list_id, "list")
    for key in [row["id"] for row in world.rows("todo.items") if row["list_id"] == list_id]:
        world.remove("todo.items", key)
    world.remove("todo.lists", list_id)
    return {"message": "List deleted."}


def search_items(
    world: World,
    access_token: str,
    list_id: int | None = None,
    query: str = "",
    is_completed: bool | None = None,
    page_index: int = 0,
    page_limit: int = 5,
):
    """Search the items of one list or of all lists.

    access_token: access token from todo login
    list_id: only items of this list
    query: part of the title
    is_completed: only completed (or only open) items
    page_index: number of the page, from 0
    page_limit: records a page, 1 to 20
    """
    rows = [
        view(row, *ITEM)
        for row in world.rows("todo.items")
        if list_id in (None, row["list_id"])
        and query.casefold() in row["title"].casefold()
        and is_completed in (None, row["is_completed"])
    ]
    return page(rows, page_index, page_limit)


def show_item(world: World, item_id: int, access_token: str):
    """Show one item.

    item_id: id of the item
    access_token: access token from todo login
    """
    return view(world.get("todo.items", item_id, "item"), *ITEM)


def add_item(
    world: World, list_id: int, title: str, access_token: str, due_date: str = "", priority: str = "medium"
):
    """Add an item to a list.

    list_id: id of the list
    title: what to do
    access_token: access token from todo login
    due_date: due date, YYYY-MM-DD
    priority: low, medium or high
    """
    world.get("todo.lists", list_id, "list")
    check_priority(world, priority)
    key = world.add(
        "todo.items", list_id=list_id, title=title, due_date=due_date, priority=priority, is_completed=False
    )
    return {"message": "Item added.", "item_id": key}


def update_item(
    world: World,
    item_id: int,
    access_token: str,
    title: str | None = None,
    due_date: str | None = None,
    priority: str | None = None,
    is_completed: bool | None = None,
):
    """Change an item.

    item_id: id of the item
    access_token: access token from todo login
    title: new title
    due_date: new due date, YYYY-MM-DD
    priority: low, medium or high
    is_completed: whether it is completed
    """
    world.get("todo.items", item_id, "item")
    check_priority(world, priority)
    fields = {"title": title, "due_date": due_date, "priority": priority, "is_completed": is_completed}
    world.change("todo.items", item_id, **{k: v for k, v in fields.items() if v is not None})
    return {"message": "Item updated."}


def delete_item(world: World, item_id: int, access_token: str):
    """Delete an item.

    item_id: id of the item
    access_token: access token from todo login
    """
    world.get("todo.items", item_id, "item")
    world.remove("todo.items", item_id)
    return {"message": "Item deleted."}


def check_priority(world: World, priority: str | None) -> None:
    if priority is not None and priority not in PRIORITIES:
        raise world.refuse(422, "Validation error. Reason: \npriority: must be one of low, medium, high")


APP = App(
    "todo",
    "Lists of things to do, with due dates and priorities.",
    (
        login_of("todo"),
        logout_of("todo"),
        Api(show_lists, [LIST]),
        Api(create_list, MESSAGE | {"list_id": 1}),
        Api(delete_list, MESSAGE),
        Api(search_items, [ITEM]),
        Api(show_item, ITEM),
        Api(add_item, MESSAGE | {"item_id": 1}),
        Api(update_item, MESSAGE),
        Api(delete_item, MESSAGE),
    ),
)
