"""Tasks about notes and todo lists."""

from __future__ import annotations

from jaxagent.envs.world.goal import Goal, added, removed, updated
from jaxagent.envs.world.kinds.scene import DONE, READ_NOTE, Kind, Scene, fill
from jaxagent.envs.world.people import CHORES, TAGS, titles

ALL_NOTES = "notes = pages(apis.notes.search_notes, tag=<tag>, access_token=notes_token)\nprint(notes)"
FIND_LIST = """
lists = apis.todo.show_lists(access_token=todo_token)
list_id = [row["list_id"] for row in lists if row["name"] == <name>][0]
print(list_id)
"""


def countnotes(scene: Scene) -> Goal:
    tag = scene.rng.choice(TAGS)
    answer = sum(tag in row["tags"] for row in scene.rows("notes.notes"))
    return Goal(
        f'How many of my notes are tagged "{tag}"?',
        (fill(ALL_NOTES, tag=tag), "apis.supervisor.complete_task(answer=len(notes))"),
        answer=answer,
        lookups=("notes.search_notes",),
    )


def pintag(scene: Scene) -> Goal:
    tag, pin = scene.rng.choice(TAGS), scene.style.random() < 0.5
    chosen = [row for row in scene.rows("notes.notes") if tag in row["tags"]]
    for i, row in enumerate(chosen):
        row["pinned"] = pin if i % 3 == 2 else not pin
    if not chosen:
        row = scene.pick("notes.notes")
        row["tags"], row["pinned"], chosen = (tag,), not pin, [row]
    code = """
    for note in notes:
        if note["pinned"] != <pin>:
            apis.notes.update_note(note_id=note["note_id"], pinned=<pin>, access_token=notes_token)
    """
    return Goal(
        f'{"Pin" if pin else "Unpin"} all my notes with the tag "{tag}".',
        (fill(ALL_NOTES, tag=tag), fill(code, pin=pin), DONE),
        tuple(updated("notes.notes", row["id"], pinned=pin) for row in chosen if row["pinned"] != pin),
        lookups=("notes.search_notes", "notes.update_note"),
    )


def oldnotes(scene: Scene) -> Goal:
    notes = scene.rows("notes.notes")
    scene.rng.choice(notes)["created_at"] = f"{scene.day(-450)}T08:00"
    limit = scene.day(-scene.rng.randrange(200, 380))
    gone = [row for row in notes if row["created_at"] < limit]
    code = """
    for note in pages(apis.notes.search_notes, access_token=notes_token):
        if note["created_at"] < <limit>:
            apis.notes.delete_note(note_id=note["note_id"], access_token=notes_token)
    """
    return Goal(
        f"Delete every note that I created before {limit}.",
        (fill(code, limit=limit), DONE),
        tuple(removed("notes.notes", row["id"]) for row in gone),
        lookups=("notes.search_notes", "notes.delete_note"),
    )


def indexnote(scene: Scene) -> Goal:
    tag = scene.rng.choice(TAGS)
    title = scene.style.choice(["Overview", "Index", "Table of contents"])
    names = sorted(row["title"] for row in scene.rows("notes.notes") if tag in row["tags"])
    code = """
    content = "\\n".join(sorted(note["title"] for note in notes))
    apis.notes.create_note(title=<title>, content=content, tags=[<tag>], access_token=notes_token)
    """
    return Goal(
        f'Create a note titled "{title}" with the tag "{tag}". Its content is the titles of all my notes '
        f'that have the tag "{tag}" now, one a line, in alphabetical order.',
        (fill(ALL_NOTES, tag=tag), fill(code, title=title, tag=tag), DONE),
        (added("notes.notes", title=title, content="\n".join(names), tags=(tag,), pinned=False),),
        lookups=("notes.search_notes", "notes.create_note"),
    )


def retag(scene: Scene) -> Goal:
    old, new = scene.rng.sample(TAGS, 2)
    new = f"{new}-{scene.style.choice(['old', 'archive', 'done'])}"
    chosen = [row for row in scene.rows("notes.notes") if old in row["tags"]]
    if not chosen:
        chosen = [scene.pick("notes.notes")]
        chosen[0]["tags"] = (old,)
    code = """
    for note in notes:
        apis.notes.remove_tag(note_id=note["note_id"], tag=<old>, access_token=notes_token)
        apis.notes.add_tag(note_id=note["note_id"], tag=<new>, access_token=notes_token)
    """
    changes = [
        updated("notes.notes", row["id"], tags=(*(tag for tag in row["tags"] if tag != old), new))
        for row in chosen
    ]
    return Goal(
        f'Replace the tag "{old}" by the tag "{new}" on all my notes.',
        (fill(ALL_NOTES, tag=old), fill(code, old=old, new=new), DONE),
        tuple(changes),
        lookups=("notes.search_notes", "notes.remove_tag", "notes.add_tag"),
    )


def additem(scene: Scene) -> Goal:
    target = scene.pick("todo.lists")
    taken = {row["title"] for row in scene.rows("todo.items", list_id=target["id"])}
    title = scene.rng.choice([chore for chore in CHORES if chore not in taken])
    due, priority = scene.day(scene.rng.randrange(2, 20)), scene.style.choice(["low", "high"])
    code = """
    apis.todo.add_item(list_id=list_id, title=<title>, due_date=<due>, priority=<priority>,
                       access_token=todo_token)
    """
    fields = {"title": title, "due_date": due, "priority": priority}
    return Goal(
        f'Add "{title}" to my todo list "{target["name"]}", due on {due}, with {priority} priority.',
        (fill(FIND_LIST, name=target["name"]), fill(code, title=title, due=due, priority=priority), DONE),
        (added("todo.items", list_id=target["id"], is_completed=False, **fields),),
        lookups=("todo.show_lists", "todo.add_item"),
    )


def finishlist(scene: Scene) -> Goal:
    target = scene.pick("todo.lists")
    rows = scene.rows("todo.items", list_id=target["id"])
    rows[0]["is_completed"] = False
    code = """
    for item in pages(apis.todo.search_items, list_id=list_id, is_completed=False, access_token=todo_token):
        apis.todo.update_item(item_id=item["item_id"], is_completed=True, access_token=todo_token)
    """
    return Goal(
        f'Mark everything on my todo list "{target["name"]}" as completed.',
        (fill(FIND_LIST, name=target["name"]), fill(code), DONE),
        tuple(updated("todo.items", row["id"], is_completed=True) for row in rows if not row["is_completed"]),
        lookups=("todo.show_lists", "todo.search_items", "todo.update_item"),
    )


def overdue(scene: Scene) -> Goal:
    today = scene.day(0)
    first = scene.pick("todo.items")
    first.update(due_date=scene.day(-3), is_completed=False, priority="low")
    rows = [row for row in scene.rows("todo.items", is_completed=False) if row["due_date"] < today]
    code = """
    today = apis.supervisor.show_date_time()["date_time"][:10]
    for item in pages(apis.todo.search_items, is_completed=False, access_token=todo_token):
        if item["due_date"] < today:
            apis.todo.update_item(item_id=item["item_id"], priority="high", access_token=todo_token)
    """
    return Goal(
        "Give every open todo item that is overdue (due before today) high priority.",
        (fill(code), DONE),
        tuple(updated("todo.items", row["id"], priority="high") for row in rows if row["priority"] != "high"),
        lookups=("todo.search_items", "todo.update_item", "supervisor.show_date_time"),
    )


def cleartodo(scene: Scene) -> Goal:
    scene.pick("todo.items")["is_completed"] = True
    code = """
    for item in pages(apis.todo.search_items, is_completed=True, access_token=todo_token):
        apis.todo.delete_item(item_id=item["item_id"], access_token=todo_token)
    """
    return Goal(
        "Delete all completed items from all my todo lists.",
        (fill(code), DONE),
        tuple(removed("todo.items", row["id"]) for row in scene.rows("todo.items", is_completed=True)),
        lookups=("todo.search_items", "todo.delete_item"),
    )


def notetodo(scene: Scene) -> Goal:
    target, title = scene.pick("todo.lists"), f"{titles(scene.rng, 1)[0]} plan"
    things = [
        f"{chore} ({title.split()[0].lower()})"
        for chore in scene.rng.sample(CHORES, scene.rng.randrange(3, 6))
    ]
    created = f"{scene.day(-2)}T11:00"
    scene.plant(
        "notes.notes",
        title=title,
        content="\n".join(f"- {x}" for x in things),
        tags=(),
        pinned=False,
        created_at=created,
    )
    write = """
    for line in note["content"].splitlines():
        apis.todo.add_item(list_id=list_id, title=line.removeprefix("- "), access_token=todo_token)
    """
    return Goal(
        f'Add each thing in my note "{title}" as an item to my todo list "{target["name"]}".',
        (fill(READ_NOTE, title=title), fill(FIND_LIST, name=target["name"]), fill(write), DONE),
        tuple(added("todo.items", list_id=target["id"], title=thing, is_completed=False) for thing in things),
        lookups=("notes.search_notes", "notes.show_note", "todo.show_lists", "todo.add_item"),
    )


KINDS = (
    Kind("countnotes", 1, countnotes),
    Kind("pintag", 1, pintag),
    Kind("oldnotes", 2, oldnotes),
    Kind("indexnote", 2, indexnote),
    Kind("retag", 2, retag),
    Kind("additem", 1, additem),
    Kind("finishlist", 1, finishlist),
    Kind("overdue", 2, overdue),
    Kind("cleartodo", 1, cleartodo),
    Kind("notetodo", 3, notetodo),
)
