"""The app that knows the person the agent works for, and that ends the task."""

from __future__ import annotations

from jaxagent.envs.world.engine import Api, App, World, view

PROFILE = {"first_name": "string", "last_name": "string", "email": "string", "phone_number": "string"}
ADDRESS = {"address_id": 1, "name": "string", "street": "string", "city": "string", "zip_code": "string"}
CARD = {"payment_card_id": 1, "name": "string", "card_number": "string", "expiry": "string"}


def show_profile(world: World):
    """Show the name, email and phone number of the person."""
    return {name: world.opening[name] for name in PROFILE}


def show_account_passwords(world: World):
    """Show the password of every account of the person."""
    return [{"account_name": app, "password": password} for app, password in world.passwords.items()]


def show_addresses(world: World):
    """Show the addresses of the person."""
    return [view(row, "address_id", "name", "street", "city", "zip_code") for row in world.rows("addresses")]


def show_payment_cards(world: World):
    """Show the payment cards of the person."""
    return [view(row, "payment_card_id", "name", "card_number", "expiry") for row in world.rows("cards")]


def show_date_time(world: World):
    """Show the current date and time."""
    return {"date_time": world.now}


def complete_task(world: World, answer: object = None, status: str = "success"):
    """End the task.

    answer: the answer as a bare value, if the task asks for information
    status: "success", or "fail" if the task cannot be done
    """
    if status not in ("success", "fail"):
        raise world.refuse(422, "Validation error. Reason: \nstatus: must be one of success, fail")
    if world.completed:
        raise world.refuse(409, "The task has already been completed.")
    world.completed, world.status, world.answer = True, status, answer
    return {"message": "The task has been completed."}


APP = App(
    "supervisor",
    "Who the person is: profile, account passwords, addresses, payment cards; and the end of the task.",
    (
        Api(show_profile, PROFILE),
        Api(show_account_passwords, [{"account_name": "string", "password": "string"}]),
        Api(show_addresses, [ADDRESS]),
        Api(show_payment_cards, [CARD]),
        Api(show_date_time, {"date_time": "string"}),
        Api(complete_task, {"message": "string"}),
    ),
)
