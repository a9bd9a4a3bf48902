"""Payments between people, and requests for money."""

from __future__ import annotations

from jaxagent.envs.world.apps.account import MESSAGE, login_of, logout_of
from jaxagent.envs.world.engine import Api, App, World, page, view

PAYMENT = {
    "payment_id": 1,
    "direction": "string",
    "email": "string",
    "amount": 1.0,
    "description": "string",
    "created_at": "string",
}
REQUEST = {
    "request_id": 1,
    "direction": "string",
    "email": "string",
    "amount": 1.0,
    "description": "string",
    "status": "string",
}


def show_balance(world: World, access_token: str):
    """Show the balance of the account.

    access_token: access token from bank login
    """
    return {"balance": world.get("bank.account", 1, "account")["balance"]}


def search_payments(
    world: World,
    access_token: str,
    email: str | None = None,
    direction: str | None = None,
    query: str = "",
    page_index: int = 0,
    page_limit: int = 5,
):
    """Search past payments, latest first.

    access_token: access token from bank login
    email: only payments with the person of this email
    direction: "sent" or "received"
    query: part of the description
    page_index: number of the page, from 0
    page_limit: records a page, 1 to 20
    """
    rows = [
        view(row, *PAYMENT)
        for row in sorted(world.rows("bank.payments"), key=lambda row: row["created_at"], reverse=True)
        if email in (None, row["email"])
        and direction in (None, row["direction"])
        and query.casefold() in row["description"].casefold()
    ]
    return page(rows, page_index, page_limit)


def send_money(world: World, email: str, amount: float, access_token: str, description: str = ""):
    """Send money to a person.

    email: email of the receiver
    amount: amount in dollars
    access_token: access token from bank login
    description: what it is for
    """
    known_person(world, email)
    transfer(world, email, checked_amount(world, amount), description)
    return {"message": "Money sent.", "payment_id": max(world.tables["bank.payments"])}


def search_requests(
    world: World,
    access_token: str,
    direction: str | None = None,
    status: str | None = None,
    page_index: int = 0,
    page_limit: int = 5,
):
    """Search requests for money.

    access_token: access token from bank login
    direction: "received" (others ask the person) or "sent" (the person asks others)
    status: "pending", "approved" or "denied"
    page_index: number of the page, from 0
    page_limit: records a page, 1 to 20
    """
    rows = [
        view(row, *REQUEST)
        for row in world.rows("bank.requests")
        if direction in (None, row["direction"]) and status in (None, row["status"])
    ]
    return page(rows, page_index, page_limit)


def request_money(world: World, email: str, amount: float, access_token: str, description: str = ""):
    """Ask a person for money.

    email: email of the person who is asked
    amount: amount in dollars
    access_token: access token from bank login
    description: what it is for
    """
    known_person(world, email)
    key = world.add(
        "bank.requests",
        direction="sent",
        email=email,
        amount=checked_amount(world, amount),
        description=description,
        status="pending",
    )
    return {"message": "Money requested.", "request_id": key}


def approve_request(world: World, request_id: int, access_token: str):
    """Approve a received request; the money is sent at once.

    request_id: id of the request
    access_token: access token from bank login
    """
    row = pending(world, request_id, "received")
    transfer(world, row["email"], row["amount"], row["description"])
    world.change("bank.requests", request_id, status="approved")
    return {"message": "Request approved."}


def deny_request(world: World, request_id: int, access_token: str):
    """Deny a received request.

    request_id: id of the request
    access_token: access token from bank login
    """
    pending(world, request_id, "received")
    world.change("bank.requests", request_id, status="denied")
    return {"message": "Request denied."}


def cancel_request(world: World, request_id: int, access_token: str):
    """Withdraw a pending request that the person sent.

    request_id: id of the request
    access_token: access token from bank login
    """
    pending(world, request_id, "sent")
    world.remove("bank.requests", request_id)
    return {"message": "Request cancelled."}


def checked_amount(world: World, amount: float) -> float:
    if not 0.01 <= amount <= 1_000_000:
        raise world.refuse(422, "Validation error. Reason: \namount: must be positive")
    return round(amount, 2)


def known_person(world: World, email: str) -> None:
    if all(row["email"] != email for row in world.rows("phone.contacts")):
        raise world.refuse(404, f"No account with the email {email} exists.")


def pending(world: World, request_id: int, direction: str) -> dict:
    row = world.get("bank.requests", request_id, "request")
    if row["direction"] != direction or row["status"] != "pending":
        raise world.refuse(409, f"The request is not a pending {direction} request.")
    return row


def transfer(world: World, email: str, amount: float, description: str) -> None:
    balance = world.get("bank.account", 1, "account")["balance"]
    if amount > balance:
        raise world.refuse(422, "The balance of the account is too low.")
    world.change("bank.account", 1, balance=round(balance - amount, 2))
    world.add(
        "bank.payments",
        direction="sent",
        email=email,
        amount=amount,
        description=description,
        created_at=world.now,
    )


APP = App(
    "bank",
    "Payments between people, and requests for money.",
    (
        login_of("bank"),
        logout_of("bank"),
        Api(show_balance, {"balance": 1.0}),
        Api(search_payments, [PAYMENT]),
        Api(send_money, MESSAGE | {"payment_id": 1}),
        Api(search_requests, [REQUEST]),
        Api(request_money, MESSAGE | {"request_id": 1}),
        Api(approve_request, MESSAGE),
        Api(deny_request, MESSAGE),
        Api(cancel_request, MESSAGE),
    ),
)
