"""The API documentation is complete and true: parameters, descriptions, and the shape of every result."""

import pytest

from jaxagent.envs.sandbox import ApiError
from jaxagent.envs.world.apps.api_docs import document
from jaxagent.envs.world.easy_apps import EASY_APPS
from jaxagent.envs.world.people import FULL_APPS
from jaxagent.envs.world.tasks import build, tasks

ALL = [(app, api) for app in FULL_APPS.values() for api in app.apis]


def fits(example, value) -> bool:
    """Whether a result has the shape of the documented example."""
    if isinstance(example, dict):
        return (
            isinstance(value, dict)
            and set(example) <= set(value)
            and all(fits(v, value[k]) for k, v in example.items())
        )
    if isinstance(example, list):
        return isinstance(value, list) and all(fits(example[0], item) for item in value)
    if isinstance(example, float):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return type(value) is type(example)


def test_there_are_enough_apps_and_apis():
    assert len(FULL_APPS) == 10
    assert len(ALL) == 89
    assert len({(app.name, api.name) for app, api in ALL}) == len(ALL)


@pytest.mark.parametrize("apps", [FULL_APPS, EASY_APPS], ids=["full", "easy"])
def test_every_api_and_every_parameter_is_described(apps):
    for app in apps.values():
        assert app.description
        for api in app.apis:
            doc = document(app, api)
            assert doc["description"].endswith((".", ";")), api.name
            for parameter in doc["parameters"]:
                assert parameter["description"], (app.name, api.name, parameter["name"])


def test_the_docs_apis_cover_every_api():
    world = build(tasks("full", "train")[0])[0]
    apps = [row["name"] for row in world.call("api_docs", "show_app_descriptions", {})]
    assert apps == list(FULL_APPS)
    shown = []
    for app in apps:
        for row in world.call("api_docs", "show_api_descriptions", {"app_name": app}):
            doc = world.call("api_docs", "show_api_doc", {"app_name": app, "api_name": row["name"]})
            assert (doc["app_name"], doc["api_name"], doc["description"]) == (
                app,
                row["name"],
                row["description"],
            )
            shown.append((app, row["name"]))
    assert shown == [(app.name, api.name) for app, api in ALL]
    found = world.call("api_docs", "search_api_docs", {"query": "delete note"})
    assert found == [{"app_name": "notes", "api_name": "delete_note", "description": "Delete a note."}]


def test_unknown_names_list_the_known_ones():
    world = build(tasks("full", "train")[0])[0]
    with pytest.raises(ApiError, match="supervisor, api_docs, phone"):
        world.call("api_docs", "show_api_descriptions", {"app_name": "maps"})
    with pytest.raises(ApiError, match="It must be one of: login, logout, search_notes"):
        world.call("api_docs", "show_api_doc", {"app_name": "notes", "api_name": "find"})


def some_id(world, table: str, **fields) -> int:
    return next(
        key for key, row in world.tables[table].items() if all(row[k] == v for k, v in fields.items())
    )


def arguments(world) -> dict[str, dict]:
    """Valid arguments of the APIs that need some besides the token."""
    contact = next(iter(world.rows("phone.contacts")))
    note = next(iter(world.rows("notes.notes")))
    item = some_id(world, "todo.items")
    email = some_id(world, "mail.emails", folder="inbox")
    playlist = next(iter(world.rows("music.playlists")))
    liked = some_id(world, "music.liked")
    other = next(key for key in world.tables["music.songs"] if key not in world.tables["music.liked"])
    new = next(key for key in world.tables["music.songs"] if key not in playlist["song_ids"])
    event, product = some_id(world, "calendar.events"), some_id(world, "shop.products")
    who = {"email": contact["email"], "amount": 2.5}
    world.add("bank.requests", direction="received", status="pending", description="", **who)
    sent = world.add("bank.requests", direction="sent", status="pending", description="", **who)
    deny = world.add("bank.requests", direction="received", status="pending", description="", **who)
    book = {"payment_card_id": some_id(world, "cards"), "address_id": some_id(world, "addresses")}
    return {
        "api_docs.show_api_descriptions": {"app_name": "notes"},
        "api_docs.show_api_doc": {"app_name": "notes", "api_name": "login"},
        "api_docs.search_api_docs": {"query": "note"},
        "phone.show_contact": {"contact_id": contact["id"]},
        "phone.add_contact": {"first_name": "A", "last_name": "B", "phone_number": "1"},
        "phone.update_contact": {"contact_id": contact["id"], "email": contact["email"]},
        "phone.delete_contact": {"contact_id": max(world.tables["phone.contacts"])},
        "phone.send_text_message": {"phone_number": contact["phone_number"], "text": "hi"},
        "phone.delete_text_message": {"message_id": some_id(world, "phone.messages")},
        "notes.show_note": {"note_id": note["id"]},
        "notes.create_note": {"title": "a", "content": "b", "tags": ["c"]},
        "notes.update_note": {"note_id": note["id"], "pinned": True},
        "notes.add_tag": {"note_id": note["id"], "tag": "new"},
        "notes.remove_tag": {"note_id": note["id"], "tag": note["tags"][0]},
        "notes.delete_note": {"note_id": note["id"]},
        "todo.create_list": {"name": "New"},
        "todo.delete_list": {"list_id": max(world.tables["todo.lists"])},
        "todo.show_item": {"item_id": item},
        "todo.add_item": {"list_id": some_id(world, "todo.lists"), "title": "x"},
        "todo.update_item": {"item_id": item, "priority": "low"},
        "todo.delete_item": {"item_id": item},
        "bank.send_money": who,
        "bank.request_money": who,
        "bank.approve_request": {
            "request_id": some_id(world, "bank.requests", direction="received", status="pending")
        },
        "bank.deny_request": {"request_id": deny},
        "bank.cancel_request": {"request_id": sent},
        "mail.show_email": {"email_id": email},
        "mail.send_email": {"recipient": "a@b.c", "subject": "s", "body": "t"},
        "mail.reply_to_email": {"email_id": email, "body": "t"},
        "mail.mark_email": {"email_id": email, "is_read": True},
        "mail.label_email": {"email_id": email, "label": "x"},
        "mail.delete_email": {"email_id": email},
        "music.show_song": {"song_id": liked},
        "music.like_song": {"song_id": other},
        "music.unlike_song": {"song_id": liked},
        "music.show_playlist": {"playlist_id": playlist["id"]},
        "music.create_playlist": {"title": "x"},
        "music.add_song_to_playlist": {"playlist_id": playlist["id"], "song_id": new},
        "music.remove_song_from_playlist": {
            "playlist_id": playlist["id"],
            "song_id": playlist["song_ids"][0],
        },
        "music.delete_playlist": {"playlist_id": playlist["id"]},
        "calendar.show_event": {"event_id": event},
        "calendar.create_event": {"title": "x", "date": "2026-01-01", "start_time": "10:00"},
        "calendar.update_event": {"event_id": event, "location": "x"},
        "calendar.delete_event": {"event_id": event},
        "shop.show_product": {"product_id": product},
        "shop.set_cart_quantity": {"product_id": product, "quantity": 2},
        "shop.place_order": book,
        "shop.write_review": {"product_id": product, "stars": 3, "text": "x"},
    }


def test_every_api_runs_as_documented():
    world = build(tasks("full", "train")[0])[0]
    given = arguments(world)
    tokens = {
        app: world.call(app, "login", {"username": world.opening["email"], "password": password})[
            "access_token"
        ]
        for app, password in world.passwords.items()
    }
    logout = [pair for pair in ALL if pair[1].name == "logout"]
    for app, api in [*(pair for pair in ALL if pair[1].name not in ("login", "logout")), *logout]:
        doc = document(app, api)
        names = {parameter["name"] for parameter in doc["parameters"]}
        values = dict(given.get(f"{app.name}.{api.name}", {}))
        if "access_token" in names:
            values["access_token"] = tokens[app.name]
        assert {p["name"] for p in doc["parameters"] if p["required"]} <= set(values) <= names, (
            app.name,
            api.name,
        )
        result = world.call(app.name, api.name, values)
        assert fits(doc["response_schemas"]["success"], result), (app.name, api.name, result)
    assert set(given) <= {f"{app.name}.{api.name}" for app, api in ALL}
