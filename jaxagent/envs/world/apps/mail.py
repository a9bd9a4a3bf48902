"""Email: inbox, sent mail, stars and labels."""

from __future__ import annotations

from jaxagent.envs.world.apps.account import MESSAGE, login_of, logout_of
from jaxagent.envs.world.engine import Api, App, World, page, view

SHORT = {
    "email_id": 1,
    "folder": "string",
    "sender": "string",
    "recipient": "string",
    "subject": "string",
    "sent_at": "string",
    "is_read": False,
    "is_starred": False,
    "label": "string",
}
EMAIL = SHORT | {"body": "string"}


def search_emails(
    world: World,
    access_token: str,
    folder: str = "inbox",
    query: str = "",
    address: str | None = None,
    is_read: bool | None = None,
    label: str | None = None,
    page_index: int = 0,
    page_limit: int = 5,
):
    """Search the emails of a folder, latest first; the bodies are not shown.

    access_token: access token from mail login
    folder: "inbox" or "sent"
    query: part of the subject or body
    address: only emails from (inbox) or to (sent) this address
    is_read: only read (or only unread) emails
    label: only emails with this label
    page_index: number of the page, from 0
    page_limit: records a page, 1 to 20
    """
    if folder not in ("inbox", "sent"):
        raise world.refuse(422, "Validation error. Reason: \nfolder: must be one of inbox, sent")
    other = "sender" if folder == "inbox" else "recipient"
    rows = [
        view(row, *SHORT)
        for row in sorted(world.rows("mail.emails"), key=lambda row: row["sent_at"], reverse=True)
        if row["folder"] == folder
        and query.casefold() in f"{row['subject']}\n{row['body']}".casefold()
        and address in (None, row[other])
        and is_read in (None, row["is_read"])
        and label in (None, row["label"])
    ]
    return page(rows, page_index, page_limit)


def show_email(world: World, email_id: int, access_token: str):
    """Show one email with its body; this does not mark it as read.

    email_id: id of the email
    access_token: access token from mail login
    """
    return view(world.get("mail.emails", email_id, "email"), *EMAIL)


def send_email(world: World, recipient: str, subject: str, body: str, access_token: str):
    """Send an email.

    recipient: email address of the receiver
    subject: the subject
    body: the text
    access_token: access token from mail login
    """
    if "@" not in recipient:
        raise world.refuse(422, "Validation error. Reason: \nrecipient: value is not a valid email address")
    return {"message": "Email sent.", "email_id": post(world, recipient, subject, body)}


def reply_to_email(world: World, email_id: int, body: str, access_token: str):
    """Reply to an email of the inbox; the subject becomes "Re: " and its subject.

    email_id: id of the email
    body: the text of the reply
    access_token: access token from mail login
    """
    row = world.get("mail.emails", email_id, "email")
    if row["folder"] != "inbox":
        raise world.refuse(409, "Only emails of the inbox can be replied to.")
    key = post(world, row["sender"], f"Re: {row['subject']}", body)
    return {"message": "Reply sent.", "email_id": key}


def mark_email(
    world: World,
    email_id: int,
    access_token: str,
    is_read: bool | None = None,
    is_starred: bool | None = None,
):
    """Mark an email as read or unread, starred or not.

    email_id: id of the email
    access_token: access token from mail login
    is_read: whether it is read
    is_starred: whether it is starred
    """
    world.get("mail.emails", email_id, "email")
    fields = {"is_read": is_read, "is_starred": is_starred}
    world.change("mail.emails", email_id, **{k: v for k, v in fields.items() if v is not None})
    return {"message": "Email marked."}


def label_email(world: World, email_id: int, label: str, access_token: str):
    """Give an email a label in place of the one it has.

    email_id: id of the email
    label: the label; an empty one removes it
    access_token: access token from mail login
    """
    world.get("mail.emails", email_id, "email")
    world.change("mail.emails", email_id, label=label)
    return {"message": "Email labelled."}


def delete_email(world: World, email_id: int, access_token: str):
    """Delete an email.

    email_id: id of the email
    access_token: access token from mail login
    """
    world.get("mail.emails", email_id, "email")
    world.remove("mail.emails", email_id)
    return {"message": "Email deleted."}


def post(world: World, recipient: str, subject: str, body: str) -> int:
    return world.add(
        "mail.emails",
        folder="sent",
        sender=world.opening["email"],
        recipient=recipient,
        subject=subject,
        body=body,
        sent_at=world.now,
        is_read=True,
        is_starred=False,
        label="",
    )


APP = App(
    "mail",
    "Email: inbox and sent mail, stars and labels.",
    (
        login_of("mail"),
        logout_of("mail"),
        Api(search_emails, [SHORT]),
        Api(show_email, EMAIL),
        Api(send_email, MESSAGE | {"email_id": 1}),
        Api(reply_to_email, MESSAGE | {"email_id": 1}),
        Api(mark_email, MESSAGE),
        Api(label_email, MESSAGE),
        Api(delete_email, MESSAGE),
    ),
)
