"""Notes with tags."""

from __future__ import annotations

from jaxagent.envs.world.apps.account import MESSAGE, login_of, logout_of
from jaxagent.envs.world.engine import Api, App, World, page, view

SHORT = {"note_id": 1, "title": "string", "tags": ["string"], "pinned": False, "created_at": "string"}
NOTE = SHORT | {"content": "string"}


def search_notes(
    world: World,
    access_token: str,
    query: str = "",
    tag: str | None = None,
    pinned: bool | None = None,
    page_index: int = 0,
    page_limit: int = 5,
):
    """Search notes by title and content; the content itself is not shown.

    access_token: access token from notes login
    query: part of the title or content
    tag: only notes with this tag
    pinned: only pinned (or only unpinned) notes
    page_index: number of the page, from 0
    page_limit: records a page, 1 to 20
    """
    rows = [
        view(row, *SHORT)
        for row in world.rows("notes.notes")
        if query.casefold() in f"{row['title']}\n{row['content']}".casefold()
        and (tag is None or tag in row["tags"])
        and pinned in (None, row["pinned"])
    ]
    return page(rows, page_index, page_limit)


def show_note(world: World, note_id: int, access_token: str):
    """Show one note with its content.

    note_id: id of the note
    access_token: access token from notes login
    """
    return view(world.get("notes.notes", note_id, "note"), *NOTE)


def create_note(world: World, title: str, content: str, access_token: str, tags: list | None = None):
    """Create a note.

    title: title of the note
    content: content of the note
    access_token: access token from notes login
    tags: list of tags
    """
    key = world.add(
        "notes.notes",
        title=title,
        content=content,
        tags=tuple(map(str, tags or ())),
        pinned=False,
        created_at=world.now,
    )
    return {"message": "Note created.", "note_id": key}


def update_note(
    world: World,
    note_id: int,
    access_token: str,
    title: str | None = None,
    content: str | None = None,
    pinned: bool | None = None,
):
    """Change the title, the content or the pin of a note.

    note_id: id of the note
    access_token: access token from notes login
    title: new title
    content: new content
    pinned: whether the note is pinned
    """
    world.get("notes.notes", note_id, "note")
    fields = {"title": title, "content": content, "pinned": pinned}
    world.change("notes.notes", note_id, **{k: v for k, v in fields.items() if v is not None})
    return {"message": "Note updated."}


def add_tag(world: World, note_id: int, tag: str, access_token: str):
    """Add a tag to a note.

    note_id: id of the note
    tag: the tag
    access_token: access token from notes login
    """
    tags = world.get("notes.notes", note_id, "note")["tags"]
    if tag in tags:
        raise world.refuse(409, f"The note already has the tag {tag}.")
    if len(tags) >= 50:
        raise world.refuse(409, "A note can have 50 tags at most.")
    world.change("notes.notes", note_id, tags=(*tags, tag))
    return {"message": "Tag added."}


def remove_tag(world: World, note_id: int, tag: str, access_token: str):
    """Remove a tag from a note.

    note_id: id of the note
    tag: the tag
    access_token: access token from notes login
    """
    tags = world.get("notes.notes", note_id, "note")["tags"]
    if tag not in tags:
        raise world.refuse(404, f"The note does not have the tag {tag}.")
    world.change("notes.notes", note_id, tags=tuple(t for t in tags if t != tag))
    return {"message": "Tag removed."}


def delete_note(world: World, note_id: int, access_token: str):
    """Delete a note.

    note_id: id of the note
    access_token: access token from notes login
    """
    world.get("notes.notes", note_id, "note")
    world.remove("notes.notes", note_id)
    return {"message": "Note deleted."}


APP = App(
    "notes",
    "Notes with titles, tags and pins.",
    (
        login_of("notes"),
        logout_of("notes"),
        Api(search_notes, [SHORT]),
        Api(show_note, NOTE),
        Api(create_note, MESSAGE | {"note_id": 1}),
        Api(update_note, MESSAGE),
        Api(add_tag, MESSAGE),
        Api(remove_tag, MESSAGE),
        Api(delete_note, MESSAGE),
    ),
)
