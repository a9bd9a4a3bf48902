"""Contacts and text messages."""

from __future__ import annotations

from jaxagent.envs.world.apps.account import MESSAGE, login_of, logout_of
from jaxagent.envs.world.engine import Api, App, World, page, view

CONTACT = {
    "contact_id": 1,
    "first_name": "string",
    "last_name": "string",
    "relationship": "string",
    "email": "string",
    "phone_number": "string",
    "birthday": "string",
}
TEXT = {
    "message_id": 1,
    "direction": "string",
    "phone_number": "string",
    "text": "string",
    "sent_at": "string",
}


def show_relationships(world: World, access_token: str):
    """Show the relationships that contacts have to the person.

    access_token: access token from phone login
    """
    return sorted({row["relationship"] for row in world.rows("phone.contacts")})


def search_contacts(
    world: World,
    access_token: str,
    query: str = "",
    relationship: str | None = None,
    page_index: int = 0,
    page_limit: int = 5,
):
    """Search contacts by name, email or phone number, and by relationship.

    access_token: access token from phone login
    query: part of the name, email or phone number
    relationship: only contacts with this relationship
    page_index: number of the page, from 0
    page_limit: records a page, 1 to 20
    """
    words = query.casefold()
    rows = [
        view(row, *CONTACT)
        for row in world.rows("phone.contacts")
        if words in f"{row['first_name']} {row['last_name']} {row['email']} {row['phone_number']}".casefold()
        and relationship in (None, row["relationship"])
    ]
    return page(rows, page_index, page_limit)


def show_contact(world: World, contact_id: int, access_token: str):
    """Show one contact.

    contact_id: id of the contact
    access_token: access token from phone login
    """
    return view(world.get("phone.contacts", contact_id, "contact"), *CONTACT)


def add_contact(
    world: World,
    first_name: str,
    last_name: str,
    phone_number: str,
    access_token: str,
    email: str = "",
    relationship: str = "other",
    birthday: str = "",
):
    """Add a contact.

    first_name: first name
    last_name: last name
    phone_number: phone number
    access_token: access token from phone login
    email: email address
    relationship: relationship to the person
    birthday: date of birth, YYYY-MM-DD
    """
    key = world.add(
        "phone.contacts",
        first_name=first_name,
        last_name=last_name,
        relationship=relationship,
        email=email,
        phone_number=phone_number,
        birthday=birthday,
    )
    return {"message": "Contact added.", "contact_id": key}


def update_contact(
    world: World,
    contact_id: int,
    access_token: str,
    phone_number: str | None = None,
    email: str | None = None,
    relationship: str | None = None,
):
    """Change the phone number, email or relationship of a contact.

    contact_id: id of the contact
    access_token: access token from phone login
    phone_number: new phone number
    email: new email address
    relationship: new relationship
    """
    world.get("phone.contacts", contact_id, "contact")
    fields = {"phone_number": phone_number, "email": email, "relationship": relationship}
    world.change("phone.contacts", contact_id, **{k: v for k, v in fields.items() if v is not None})
    return {"message": "Contact updated."}


def delete_contact(world: World, contact_id: int, access_token: str):
    """Delete a contact.

    contact_id: id of the contact
    access_token: access token from phone login
    """
    world.get("phone.contacts", contact_id, "contact")
    world.remove("phone.contacts", contact_id)
    return {"message": "Contact deleted."}


def search_text_messages(
    world: World,
    access_token: str,
    query: str = "",
    phone_number: str | None = None,
    page_index: int = 0,
    page_limit: int = 5,
):
    """Search sent and received text messages, latest first.

    access_token: access token from phone login
    query: part of the text
    phone_number: only messages with this number
    page_index: number of the page, from 0
    page_limit: records a page, 1 to 20
    """
    rows = [
        view(row, *TEXT)
        for row in sorted(world.rows("phone.messages"), key=lambda row: row["sent_at"], reverse=True)
        if query.casefold() in row["text"].casefold() and phone_number in (None, row["phone_number"])
    ]
    return page(rows, page_index, page_limit)


def send_text_message(world: World, phone_number: str, text: str, access_token: str):
    """Send a text message.

    phone_number: number of the receiver
    text: the message
    access_token: access token from phone login
    """
    if all(row["phone_number"] != phone_number for row in world.rows("phone.contacts")):
        raise world.refuse(404, f"No contact has the phone number {phone_number}.")
    key = world.add(
        "phone.messages", direction="sent", phone_number=phone_number, text=text, sent_at=world.now
    )
    return {"message": "Message sent.", "message_id": key}


def delete_text_message(world: World, message_id: int, access_token: str):
    """Delete a text message.

    message_id: id of the message
    access_token: access token from phone login
    """
    world.get("phone.messages", message_id, "message")
    world.remove("phone.messages", message_id)
    return {"message": "Message deleted."}


APP = App(
    "phone",
    "Contacts (friends, family, colleagues) and text messages.",
    (
        login_of("phone"),
        logout_of("phone"),
        Api(show_relationships, ["string"]),
        Api(search_contacts, [CONTACT]),
        Api(show_contact, CONTACT),
        Api(add_contact, MESSAGE | {"contact_id": 1}),
        Api(update_contact, MESSAGE),
        Api(delete_contact, MESSAGE),
        Api(search_text_messages, [TEXT]),
        Api(send_text_message, MESSAGE | {"message_id": 1}),
        Api(delete_text_message, MESSAGE),
    ),
)
