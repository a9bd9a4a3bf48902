"""One person's life at the full level, drawn from a seed: contacts, notes, payments, emails, songs, events.

Ids start at random numbers and results come in pages, so a solution has to look records up and to walk pages.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from jaxagent.envs.world.apps import (
    api_docs,
    bank,
    calendar,
    mail,
    music,
    notes,
    phone,
    shop,
    supervisor,
    todo,
)
from jaxagent.envs.world.engine import Row, Tables, World


def words(text: str, separator: str | None = None) -> list[str]:
    """The items of a text."""
    return [word.strip() for word in text.split(separator)]


FULL_APPS = {
    module.APP.name: module.APP
    for module in (supervisor, api_docs, phone, notes, todo, bank, mail, music, calendar, shop)
}
FIRST = words(
    """Ada Ben Cleo Dario Elif Femi Gwen Hugo Ines Jonas Kira Luca Mina Noor Omar Pia Quinn Rosa Sami Tara Uma
    Viktor Wanda Xenia Yusuf Zoe Arlo Bela Cora Dev Esme Finn Greta Hana Ivo Juna Kaan Lena Milo Nadia"""
)
LAST = words(
    """Abbott Bright Castle Dunn Ellery Frost Garland Holt Irving Jarvis Keller Lowe Marsh Nolan Ortega Pryor
    Quill Rhodes Stone Thorne Underwood Vance Webb Yates Zeller Archer Brook Chase Doyle Finch"""
)
ADJECTIVE = words("quiet golden broken winter hidden paper silver distant electric gentle crooked early")
NOUN = words("river garden mirror engine letter harbor lantern signal orchard window bridge story")
ARTISTS = [
    "The Lanterns",
    "Mara Vale",
    "Oto Sky",
    "Blue Ferry",
    "Nils Arbor",
    "Sun Parade",
    "Ivy Cole",
    "Red Atlas",
]
GENRES = ["rock", "jazz", "folk", "pop", "ambient", "soul"]
TAGS = ["work", "travel", "recipes", "ideas", "health", "family"]
CHORES = words(
    """call the plumber|renew the passport|water the plants|book the dentist|send the report|fix the lamp|
    wash the car|buy stamps|clean the oven|return the parcel|order printer ink|plan the menu|pay the gas bill|
    sort old photos|repair the bike|paint the fence|mend the curtain|charge the drill|update the budget|
    pick up the suit""",
    "|",
)
REASONS = [
    "dinner",
    "rent",
    "groceries",
    "concert tickets",
    "taxi",
    "a gift",
    "coffee",
    "gas",
    "lunch",
    "books",
]
SUBJECTS = [
    "Trip photos",
    "Weekend plans",
    "Project update",
    "Invoice",
    "Question about the lease",
    "Recipe",
    "Minutes",
]
EVENTS = [
    "Dentist",
    "Team meeting",
    "Yoga class",
    "Lunch",
    "Book club",
    "Budget review",
    "Piano lesson",
    "Planning",
]
PLACES = ["Room 4", "the library", "Cafe Lumen", "the park", "the office", "online"]
CATEGORIES = {
    "kitchen": ["kettle", "pan", "toaster", "knife set", "blender"],
    "garden": ["hose", "rake", "lamp", "shears", "planter"],
    "office": ["chair", "desk lamp", "notebook", "stapler", "monitor arm"],
    "sports": ["yoga mat", "racket", "skipping rope", "helmet", "bottle"],
}
RELATIONSHIPS = ["friend"] * 4 + ["coworker"] * 4 + ["roommate"] * 2 + ["sibling"] * 3 + ["neighbor"] * 2
CENTS = 0.25


def money(rng: random.Random, low: int, high: int) -> float:
    """A price in quarters of a dollar: exact in floating point."""
    return low + CENTS * rng.randrange(4 * (high - low))


def day(now: datetime, days: int) -> str:
    return (now + timedelta(days=days)).date().isoformat()


def moment(rng: random.Random, now: datetime, days: int) -> str:
    """A time within the last `days` days."""
    return (now - timedelta(minutes=rng.randrange(60, days * 24 * 60))).isoformat(timespec="minutes")


def table(rng: random.Random, rows: Sequence[Mapping[str, object]]) -> dict[int, Row]:
    start = rng.randrange(11, 900)
    return {start + i: {"id": start + i, **row} for i, row in enumerate(rows)}


def titles(rng: random.Random, count: int) -> list[str]:
    pairs = rng.sample([(a, n) for a in ADJECTIVE for n in NOUN], count)
    return [f"{adjective.capitalize()} {noun}" for adjective, noun in pairs]


def people(rng: random.Random, now: datetime) -> list[Row]:
    firsts, lasts = rng.sample(FIRST, len(RELATIONSHIPS) + 1), rng.sample(LAST, len(RELATIONSHIPS) + 1)
    numbers = rng.sample(range(1_000_000, 9_999_999), len(firsts))
    return [
        {
            "first_name": first,
            "last_name": last,
            "relationship": relationship,
            "email": f"{first.lower()}.{last.lower()}@mailbox.com",
            "phone_number": f"555{number}",
            "birthday": day(now, -rng.randrange(20 * 365, 60 * 365)),
        }
        for first, last, relationship, number in zip(
            firsts, lasts, [*RELATIONSHIPS, "self"], numbers, strict=True
        )
    ]


def social(rng: random.Random, now: datetime, contacts: list[Row]) -> Tables:
    """Contacts, messages, emails, payments: everything that refers to people."""

    def each(count: int, row: Callable[[Row], Mapping[str, object]]) -> dict[int, Row]:
        return table(rng, [row(rng.choice(contacts)) for _ in range(count)])

    def message(person: Row) -> Row:
        text = f"{rng.choice(['Did you', 'Can we', 'Shall I'])} {rng.choice(CHORES)}?"
        direction = rng.choice(["sent", "received"])
        return {
            "direction": direction,
            "phone_number": person["phone_number"],
            "text": text,
            "sent_at": moment(rng, now, 60),
        }

    def payment(person: Row) -> Row:
        return {
            "direction": rng.choice(["sent", "received"]),
            "email": person["email"],
            "amount": money(rng, 5, 90),
            "description": rng.choice(REASONS),
            "created_at": moment(rng, now, 300),
        }

    def request(person: Row) -> Row:
        return {
            "direction": rng.choice(["received", "received", "sent"]),
            "email": person["email"],
            "amount": money(rng, 5, 40),
            "description": rng.choice(REASONS),
            "status": rng.choice(["pending", "pending", "approved", "denied"]),
        }

    return {
        "phone.contacts": table(rng, contacts),
        "phone.messages": each(26, message),
        "bank.account": {1: {"id": 1, "balance": money(rng, 900, 3000)}},
        "bank.payments": each(34, payment),
        "bank.requests": each(12, request),
    }


def emails(rng: random.Random, now: datetime, contacts: list[Row], own: str) -> dict[int, Row]:
    def email() -> Row:
        other, inbox = rng.choice(contacts)["email"], rng.random() < 0.75
        return {
            "folder": "inbox" if inbox else "sent",
            "sender": other if inbox else own,
            "recipient": own if inbox else other,
            "subject": f"{rng.choice(SUBJECTS)} {rng.randrange(10, 99)}",
            "body": f"Hello, please {rng.choice(CHORES)} before you {rng.choice(CHORES)}.",
            "sent_at": moment(rng, now, 40),
            "is_read": not inbox or rng.random() < 0.5,
            "is_starred": rng.random() < 0.2,
            "label": rng.choice(["", "", "home", "bills"]),
        }

    return table(rng, [email() for _ in range(36)])


def papers(rng: random.Random, now: datetime) -> Tables:
    """Notes and todo lists."""
    notes_rows = [
        {
            "title": title,
            "content": f"Remember to {rng.choice(CHORES)}, then {rng.choice(CHORES)}.",
            "tags": tuple(rng.sample(TAGS, rng.choice([1, 1, 2]))),
            "pinned": rng.random() < 0.2,
            "created_at": moment(rng, now, 400),
        }
        for title in titles(rng, 22)
    ]
    lists = table(rng, [{"name": name} for name in ("Home", "Errands", "Office", "Garden")])
    items = [
        {
            "list_id": key,
            "title": title,
            "due_date": day(now, rng.choice([-9, -5, -2, 1, 4, 8, 15])),
            "priority": rng.choice(["low", "medium", "high"]),
            "is_completed": rng.random() < 0.35,
        }
        for key in lists
        for title in rng.sample(CHORES, rng.randrange(5, 9))
    ]
    return {"notes.notes": table(rng, notes_rows), "todo.lists": lists, "todo.items": table(rng, items)}


def leisure(rng: random.Random, now: datetime, contacts: list[Row]) -> Tables:
    """Songs, playlists and events."""
    plays = rng.sample(range(100, 9000), 48)
    songs = table(
        rng,
        [
            {
                "title": title,
                "artist": rng.choice(ARTISTS),
                "genre": rng.choice(GENRES),
                "seconds": rng.randrange(90, 420),
                "release_year": rng.randrange(1985, now.year),
                "play_count": count,
            }
            for title, count in zip(titles(rng, 48), plays, strict=True)
        ],
    )
    names = rng.sample(["Morning run", "Late work", "Road trip", "Cooking", "Rainy days", "Focus"], 5)
    lists = [
        {"title": name, "song_ids": tuple(rng.sample(list(songs), rng.randrange(6, 13)))} for name in names
    ]
    events = [
        {
            "title": f"{rng.choice(EVENTS)} {number}",
            "date": day(now, rng.randrange(1, 8)),
            "start_time": f"{rng.randrange(8, 19):02d}:{rng.choice(['00', '15', '30', '45'])}",
            "minutes": rng.choice([30, 45, 60, 90]),
            "location": rng.choice(PLACES),
            "attendees": tuple(person["email"] for person in rng.sample(contacts, rng.randrange(0, 4))),
        }
        for number in rng.sample(range(10, 99), 24)
    ]
    return {
        "music.songs": songs,
        "music.liked": {key: {"id": key} for key in rng.sample(list(songs), 18)},
        "music.playlists": table(rng, lists),
        "calendar.events": table(rng, events),
    }


def store(rng: random.Random, now: datetime) -> Tables:
    """Products, a cart, orders and reviews."""
    makers = rng.sample(["Orla", "Tern", "Vesta", "Koro", "Lund", "Mipo"], 3)
    prices = rng.sample(range(20, 400), 60)
    rows = [
        {"name": f"{maker} {thing}", "category": category, "price": prices.pop() * CENTS, "rating": 0.0}
        for category, things in CATEGORIES.items()
        for thing in things
        for maker in rng.sample(makers, 2)
    ]
    for row, rating in zip(rows, rng.sample(range(10, 51), len(rows)), strict=True):
        row["rating"] = rating / 10
    products = table(rng, rows)
    cart = {key: {"id": key, "quantity": rng.randrange(1, 4)} for key in rng.sample(list(products), 5)}

    def order() -> Row:
        keys = rng.sample(list(products), rng.randrange(1, 4))
        amounts = tuple(rng.randrange(1, 4) for _ in keys)
        total = sum(products[key]["price"] * amount for key, amount in zip(keys, amounts, strict=True))
        return {
            "product_ids": tuple(keys),
            "quantities": amounts,
            "total": total,
            "payment_card_id": 1,
            "address_id": 1,
            "created_at": moment(rng, now, 200),
        }

    reviews = [
        {"product_id": key, "stars": rng.randrange(1, 6), "text": "As described."}
        for key in list(products)[:2]
    ]
    return {
        "shop.products": products,
        "shop.cart": cart,
        "shop.orders": table(rng, [order() for _ in range(7)]),
        "shop.reviews": table(rng, reviews),
    }


def identity(rng: random.Random) -> Tables:
    """Addresses and payment cards of the person."""
    streets = rng.sample(["Elm Street", "Hill Road", "Canal Walk", "Station Lane"], 2)
    addresses = [
        {
            "name": name,
            "street": f"{rng.randrange(1, 200)} {street}",
            "city": "Marlow",
            "zip_code": f"{rng.randrange(10000, 99999)}",
        }
        for name, street in zip(("Home", "Work"), streets, strict=True)
    ]
    cards = [
        {
            "name": name,
            "card_number": str(rng.randrange(10**15, 10**16)),
            "expiry": f"20{rng.randrange(28, 33)}-0{rng.randrange(1, 10)}",
        }
        for name in ("Visa", "Debit")
    ]
    return {"addresses": table(rng, addresses), "cards": table(rng, cards)}


def fresh_world(rng: random.Random) -> World:
    """A person with a full set of apps; the same generator state gives the same world."""
    now = datetime(2026, 1, 1, 12) + timedelta(days=rng.randrange(600), minutes=rng.randrange(300))
    *contacts, me = people(rng, now)
    email = me["email"]
    tables = (
        social(rng, now, contacts)
        | {"mail.emails": emails(rng, now, contacts, email)}
        | papers(rng, now)
        | leisure(rng, now, contacts)
        | store(rng, now)
        | identity(rng)
    )
    opening = {name: me[name] for name in ("first_name", "last_name", "email", "phone_number")}
    opening |= {"name": f"{me['first_name']} {me['last_name']}", "now": now.isoformat(timespec="minutes")}
    accounts = [name for name, app in FULL_APPS.items() if app.find("login") is not None]
    letters = "abcdefghjkmnpqrstuvwxyz23456789"
    passwords = {app: "".join(rng.choices(letters, k=8)) for app in accounts}
    return World(
        FULL_APPS,
        tables,
        passwords=passwords,
        username=(email, me["phone_number"]),
        opening=opening,
        now=now.isoformat(timespec="minutes"),
    )
