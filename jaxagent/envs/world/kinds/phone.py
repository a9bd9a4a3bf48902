"""Tasks about contacts and text messages."""

from __future__ import annotations

from jaxagent.envs.world.goal import Goal, added, removed, updated
from jaxagent.envs.world.kinds.scene import DONE, Kind, Scene, fill, find_contact, full_name, sent_text
from jaxagent.envs.world.people import FIRST, LAST


def birthday(scene: Scene) -> Goal:
    person = scene.pick("phone.contacts")
    return Goal(
        f"When was {full_name(person)} born? Give the date as YYYY-MM-DD.",
        (find_contact(full_name(person)), 'apis.supervisor.complete_task(answer=person["birthday"])'),
        answer=person["birthday"],
        lookups=("phone.search_contacts",),
    )


def newcontact(scene: Scene) -> Goal:
    names = {full_name(row) for row in scene.rows("phone.contacts")}
    first, last = scene.rng.choice(FIRST), scene.rng.choice(LAST)
    while f"{first} {last}" in names:
        last = scene.rng.choice(LAST)
    fields = {
        "first_name": first,
        "last_name": last,
        "phone_number": f"555{scene.rng.randrange(10**6, 10**7)}",
        "relationship": scene.style.choice(["neighbor", "coworker", "friend"]),
    }
    code = """
    print(apis.phone.add_contact(first_name=<first_name>, last_name=<last_name>, phone_number=<phone_number>,
                                 relationship=<relationship>, access_token=phone_token))
    """
    return Goal(
        f"Add {first} {last} with the number {fields['phone_number']} to my contacts as a "
        f"{fields['relationship']}.",
        (fill(code, **fields), DONE),
        (added("phone.contacts", email="", birthday="", **fields),),
        lookups=("phone.add_contact",),
    )


def textall(scene: Scene) -> Goal:
    who = scene.style.choice(["friend", "coworker", "sibling"])
    text = scene.rng.choice(["Running late today.", "Happy to see you soon!", "I have a new number soon."])
    people = scene.rows("phone.contacts", relationship=who)
    code = """
    people = pages(apis.phone.search_contacts, relationship=<who>, access_token=phone_token)
    for person in people:
        apis.phone.send_text_message(phone_number=person["phone_number"], text=<text>,
                                     access_token=phone_token)
    print(len(people))
    """
    return Goal(
        f'Send the text message "{text}" to each of my {who}s.',
        (fill(code, who=who, text=text), DONE),
        tuple(sent_text(scene, person, text) for person in people),
        lookups=("phone.search_contacts", "phone.send_text_message"),
    )


def forgetmessages(scene: Scene) -> Goal:
    person = scene.pick("phone.contacts")
    number = person["phone_number"]
    for i in range(scene.rng.randrange(3, 9)):
        way = "received" if i % 3 else "sent"
        sent_at = f"{scene.day(-20 - i)}T10:00"
        scene.plant(
            "phone.messages", direction=way, phone_number=number, text=f"Hello again {i}", sent_at=sent_at
        )
    way = scene.style.choice(["received", "sent"])
    gone = scene.rows("phone.messages", phone_number=number, direction=way)
    word = "received from" if way == "received" else "sent to"
    code = """
    found = pages(apis.phone.search_text_messages, phone_number=person["phone_number"],
                  access_token=phone_token)
    for message in found:
        if message["direction"] == <way>:
            apis.phone.delete_text_message(message_id=message["message_id"], access_token=phone_token)
    """
    return Goal(
        f"Delete all text messages that I have {word} {full_name(person)}.",
        (find_contact(full_name(person)), fill(code, way=way), DONE),
        tuple(removed("phone.messages", row["id"]) for row in gone),
        lookups=("phone.search_contacts", "phone.search_text_messages", "phone.delete_text_message"),
    )


def newnumber(scene: Scene) -> Goal:
    person = scene.pick("phone.contacts")
    number = f"555{scene.rng.randrange(10**6, 10**7)}"
    scene.plant(
        "phone.messages",
        direction="received",
        phone_number=person["phone_number"],
        text=f"Hi, my new number is {number}",
        sent_at=f"{scene.day(-1)}T09:30",
    )
    read = """
    found = pages(apis.phone.search_text_messages, query="my new number is",
                  phone_number=person["phone_number"],
                  access_token=phone_token)
    print(found)
    """
    write = """
    number = found[0]["text"].split()[-1]
    apis.phone.update_contact(contact_id=person["contact_id"], phone_number=number, access_token=phone_token)
    """
    return Goal(
        f"{full_name(person)} has sent me a text message with a new phone number. Update the contact.",
        (find_contact(full_name(person)), fill(read), fill(write), DONE),
        (updated("phone.contacts", person["id"], phone_number=number),),
        lookups=("phone.search_contacts", "phone.search_text_messages", "phone.update_contact"),
    )


def oldest(scene: Scene) -> Goal:
    who = scene.style.choice(["friend", "coworker", "sibling"])
    person = min(scene.rows("phone.contacts", relationship=who), key=lambda row: row["birthday"])
    code = """
    people = pages(apis.phone.search_contacts, relationship=<who>, access_token=phone_token)
    first = min(people, key=lambda person: person["birthday"])
    print(first)
    """
    finish = 'apis.supervisor.complete_task(answer=first["first_name"] + " " + first["last_name"])'
    return Goal(
        f"What is the full name of the oldest of my {who}s?",
        (fill(code, who=who), finish),
        answer=full_name(person),
        lookups=("phone.search_contacts",),
    )


KINDS = (
    Kind("birthday", 1, birthday),
    Kind("newcontact", 1, newcontact),
    Kind("textall", 2, textall),
    Kind("forgetmessages", 2, forgetmessages),
    Kind("newnumber", 2, newnumber),
    Kind("oldest", 1, oldest),
)
