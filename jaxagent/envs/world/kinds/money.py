"""Tasks about payments and requests for money."""

from __future__ import annotations

from jaxagent.envs.world.goal import Goal, added, updated
from jaxagent.envs.world.kinds.scene import (
    DONE,
    READ_NOTE,
    Kind,
    Scene,
    fill,
    find_contact,
    full_name,
    sent_money,
    sent_text,
)
from jaxagent.envs.world.people import REASONS, money


def sendmoney(scene: Scene) -> Goal:
    person, amount = scene.pick("phone.contacts"), money(scene.rng, 5, 60)
    reason = scene.style.choice(REASONS)
    code = """
    print(apis.bank.send_money(email=person["email"], amount=<amount>, description=<reason>,
                               access_token=bank_token))
    """
    return Goal(
        f'Send ${amount:.2f} to {full_name(person)} with the description "{reason}".',
        (find_contact(full_name(person)), fill(code, amount=amount, reason=reason), DONE),
        sent_money(scene, (person["email"], amount, reason)),
        lookups=("phone.search_contacts", "bank.send_money"),
    )


def paymentsum(scene: Scene) -> Goal:
    person, way = scene.pick("phone.contacts"), scene.style.choice(["sent", "received"])
    for _ in range(scene.rng.randrange(4, 9)):
        other = "received" if way == "sent" else "sent"
        scene.plant(
            "bank.payments",
            direction=scene.rng.choice([way, way, other]),
            email=person["email"],
            amount=money(scene.rng, 5, 60),
            description=scene.rng.choice(REASONS),
            created_at=f"{scene.day(-scene.rng.randrange(1, 99))}T18:00",
        )
    total = sum(row["amount"] for row in scene.rows("bank.payments", email=person["email"], direction=way))
    code = """
    found = pages(apis.bank.search_payments, email=person["email"], direction=<way>, access_token=bank_token)
    total = sum(payment["amount"] for payment in found)
    print(total)
    """
    words = "have I sent to" if way == "sent" else "have I received from"
    return Goal(
        f"How much money {words} {full_name(person)} in total, in dollars?",
        (find_contact(full_name(person)), fill(code, way=way), "apis.supervisor.complete_task(answer=total)"),
        answer=total,
        lookups=("phone.search_contacts", "bank.search_payments"),
    )


def settle(scene: Scene) -> Goal:
    who = scene.style.choice(["friend", "coworker", "sibling"])
    for person in (
        scene.rng.sample(scene.rows("phone.contacts"), 4) + scene.rows("phone.contacts", relationship=who)[:2]
    ):
        scene.plant(
            "bank.requests",
            direction="received",
            email=person["email"],
            amount=money(scene.rng, 5, 40),
            description=scene.rng.choice(REASONS),
            status="pending",
        )
    group = {row["email"] for row in scene.rows("phone.contacts", relationship=who)}
    rows = scene.rows("bank.requests", direction="received", status="pending")
    good = [row for row in rows if row["email"] in group]
    people = """
    emails = [p["email"] for p in pages(apis.phone.search_contacts, relationship=<who>,
                                        access_token=phone_token)]
    asked = pages(apis.bank.search_requests, direction="received", status="pending", access_token=bank_token)
    print(emails, asked)
    """
    act = """
    for request in asked:
        answer = apis.bank.approve_request if request["email"] in emails else apis.bank.deny_request
        answer(request_id=request["request_id"], access_token=bank_token)
    """
    return Goal(
        f"Approve all pending money requests that I have received from my {who}s, and deny all others.",
        (fill(people, who=who), fill(act), DONE),
        (
            *sent_money(scene, *((row["email"], row["amount"], row["description"]) for row in good)),
            *(updated("bank.requests", r["id"], status="approved" if r in good else "denied") for r in rows),
        ),
        lookups=(
            "phone.search_contacts",
            "bank.search_requests",
            "bank.approve_request",
            "bank.deny_request",
        ),
    )


def splitbill(scene: Scene) -> Goal:
    people = scene.rng.sample(scene.rows("phone.contacts"), scene.rng.randrange(3, 6))
    title = f"{scene.style.choice(['Ski trip', 'Cabin weekend', 'Group dinner'])} costs"
    owed = [(person, money(scene.rng, 5, 80)) for person in people]
    content = "\n".join(f"{full_name(person)}: {amount:.2f}" for person, amount in owed)
    scene.plant(
        "notes.notes",
        title=title,
        content=content,
        tags=("travel",),
        pinned=False,
        created_at=f"{scene.day(-3)}T20:00",
    )
    act = """
    for line in note["content"].splitlines():
        name, amount = line.split(": ")
        person = apis.phone.search_contacts(query=name, access_token=phone_token)[0]
        apis.bank.request_money(email=person["email"], amount=float(amount), description=<title>,
                                access_token=bank_token)
    """
    return Goal(
        f'My note "{title}" says who owes me how much. Request the money from each of them with the '
        f'description "{title}".',
        (fill(READ_NOTE, title=title), fill(act, title=title), DONE),
        tuple(
            added(
                "bank.requests",
                direction="sent",
                email=p["email"],
                amount=amount,
                description=title,
                status="pending",
            )
            for p, amount in owed
        ),
        lookups=("notes.search_notes", "notes.show_note", "phone.search_contacts", "bank.request_money"),
    )


def lastpayment(scene: Scene) -> Goal:
    way = scene.style.choice(["sent", "received"])
    rows = scene.rows("bank.payments", direction=way)
    latest = max(rows, key=lambda row: row["created_at"])
    code = """
    latest = apis.bank.search_payments(direction=<way>, page_limit=1, access_token=bank_token)[0]
    print(latest)
    """
    return Goal(
        f"What is the amount of the latest payment that I have {way}?",
        (fill(code, way=way), 'apis.supervisor.complete_task(answer=latest["amount"])'),
        answer=latest["amount"],
        lookups=("bank.search_payments",),
    )


def repay(scene: Scene) -> Goal:
    person, amount = scene.pick("phone.contacts"), money(scene.rng, 5, 60)
    reason, thanks = scene.style.choice(REASONS), scene.style.choice(["Paid you back.", "Sent it, thanks!"])
    scene.plant(
        "phone.messages",
        direction="received",
        phone_number=person["phone_number"],
        text=f"You owe me ${amount:.2f} for {reason}",
        sent_at=f"{scene.day(-1)}T21:15",
    )
    read = """
    found = apis.phone.search_text_messages(query="You owe me", phone_number=person["phone_number"],
                                            access_token=phone_token)
    print(found)
    """
    act = """
    amount = float(found[0]["text"].split("$")[1].split()[0])
    reason = found[0]["text"].split(" for ")[1]
    apis.bank.send_money(email=person["email"], amount=amount, description=reason, access_token=bank_token)
    apis.phone.send_text_message(phone_number=person["phone_number"], text=<thanks>, access_token=phone_token)
    """
    return Goal(
        f"{full_name(person)} has texted me how much I owe and what for. Send the money with what it is "
        f'for as the description, then reply with the text message "{thanks}".',
        (find_contact(full_name(person)), fill(read), fill(act, thanks=thanks), DONE),
        (*sent_money(scene, (person["email"], amount, reason)), sent_text(scene, person, thanks)),
        lookups=(
            "phone.search_contacts",
            "phone.search_text_messages",
            "bank.send_money",
            "phone.send_text_message",
        ),
    )


KINDS = (
    Kind("sendmoney", 1, sendmoney),
    Kind("paymentsum", 2, paymentsum),
    Kind("settle", 3, settle),
    Kind("splitbill", 3, splitbill),
    Kind("lastpayment", 1, lastpayment),
    Kind("repay", 3, repay),
)
