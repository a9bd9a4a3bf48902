"""Tasks about email and the calendar."""

from __future__ import annotations

from jaxagent.envs.world.goal import Goal, added, removed, updated
from jaxagent.envs.world.kinds.scene import DONE, Kind, Scene, fill, find_contact, full_name, sent_email
from jaxagent.envs.world.people import EVENTS, PLACES, titles


def plant_emails(scene: Scene, sender: str, count: int, **fields: object) -> None:
    for i in range(count):
        row = {
            "subject": f"News {i}",
            "body": "More soon.",
            "sent_at": f"{scene.day(-1 - i)}T07:00",
            "is_read": False,
        }
        row |= {
            "is_starred": False,
            "label": "",
            "folder": "inbox",
            "recipient": scene.world.opening["email"],
        }
        scene.plant("mail.emails", sender=sender, **(row | fields))


def markread(scene: Scene) -> Goal:
    person = scene.pick("phone.contacts")
    plant_emails(scene, person["email"], scene.rng.randrange(2, 8))
    rows = scene.rows("mail.emails", sender=person["email"], is_read=False)
    code = """
    for email in pages(apis.mail.search_emails, address=person["email"], is_read=False,
                       access_token=mail_token):
        apis.mail.mark_email(email_id=email["email_id"], is_read=True, access_token=mail_token)
    """
    return Goal(
        f"Mark all unread emails from {full_name(person)} as read.",
        (find_contact(full_name(person)), fill(code), DONE),
        tuple(updated("mail.emails", row["id"], is_read=True) for row in rows),
        lookups=("phone.search_contacts", "mail.search_emails", "mail.mark_email"),
    )


def countunread(scene: Scene) -> Goal:
    plant_emails(scene, scene.pick("phone.contacts")["email"], scene.rng.randrange(1, 9))
    answer = len(scene.rows("mail.emails", folder="inbox", is_read=False))
    code = """
    found = pages(apis.mail.search_emails, is_read=False, access_token=mail_token)
    print(len(found))
    """
    return Goal(
        "How many unread emails are in my inbox?",
        (fill(code), "apis.supervisor.complete_task(answer=len(found))"),
        answer=answer,
        lookups=("mail.search_emails",),
    )


def labelword(scene: Scene) -> Goal:
    word, label = scene.style.choice([("invoice", "finance"), ("recipe", "cooking"), ("project", "work")])
    plant_emails(scene, scene.pick("phone.contacts")["email"], 2, subject=f"{word.capitalize()} for May")
    rows = [row for row in scene.rows("mail.emails", folder="inbox") if word in row["subject"].casefold()]
    code = """
    for email in pages(apis.mail.search_emails, query=<word>, access_token=mail_token):
        if <word> in email["subject"].lower():
            apis.mail.label_email(email_id=email["email_id"], label=<label>, access_token=mail_token)
    """
    return Goal(
        f'Give the label "{label}" to all emails of my inbox that have the word "{word}" in the subject.',
        (fill(code, word=word, label=label), DONE),
        tuple(updated("mail.emails", row["id"], label=label) for row in rows),
        lookups=("mail.search_emails", "mail.label_email"),
    )


def replymail(scene: Scene) -> Goal:
    person = scene.pick("phone.contacts")
    subject = f"{titles(scene.rng, 1)[0]}?"
    plant_emails(scene, person["email"], 1, subject=subject, sent_at=scene.world.now)
    text = scene.style.choice(["Yes, gladly.", "Sorry, I can't.", "Let me think about it."])
    code = """
    latest = apis.mail.search_emails(address=person["email"], page_limit=1, access_token=mail_token)[0]
    print(latest)
    """
    act = 'apis.mail.reply_to_email(email_id=latest["email_id"], body=<text>, access_token=mail_token)'
    return Goal(
        f'Reply to the latest email from {full_name(person)} with "{text}".',
        (find_contact(full_name(person)), fill(code), fill(act, text=text), DONE),
        (sent_email(scene, person["email"], f"Re: {subject}", text),),
        lookups=("phone.search_contacts", "mail.search_emails", "mail.reply_to_email"),
    )


def mailnote(scene: Scene) -> Goal:
    person, note = scene.pick("phone.contacts"), scene.pick("notes.notes")
    read = """
    note_id = [note for note in pages(apis.notes.search_notes, query=<title>, access_token=notes_token)
               if note["title"] == <title>][0]["note_id"]
    note = apis.notes.show_note(note_id=note_id, access_token=notes_token)
    print(note)
    """
    act = """
    apis.mail.send_email(recipient=person["email"], subject=note["title"], body=note["content"],
                         access_token=mail_token)
    """
    return Goal(
        f'Email the content of my note "{note["title"]}" to {full_name(person)}; the subject is the title '
        f"of the note.",
        (fill(read, title=note["title"]), find_contact(full_name(person)), fill(act), DONE),
        (sent_email(scene, person["email"], note["title"], note["content"]),),
        lookups=("notes.search_notes", "notes.show_note", "phone.search_contacts", "mail.send_email"),
    )


def invitation(scene: Scene) -> Goal:
    person, place = scene.pick("phone.contacts"), scene.rng.choice(PLACES)
    title = f"{scene.style.choice(EVENTS)} with {person['first_name']}"
    date, start = scene.day(scene.rng.randrange(9, 20)), f"{scene.rng.randrange(10, 18)}:30"
    body = f"title: {title}\ndate: {date}\nstart: {start}\nplace: {place}"
    plant_emails(scene, person["email"], 1, subject="Invitation", body=body, sent_at=scene.world.now)
    read = """
    found = apis.mail.search_emails(address=person["email"], query="Invitation", access_token=mail_token)[0]
    email = apis.mail.show_email(email_id=found["email_id"], access_token=mail_token)
    print(email["body"])
    """
    act = """
    event = dict(line.split(": ", 1) for line in email["body"].splitlines())
    apis.calendar.create_event(title=event["title"], date=event["date"], start_time=event["start"],
                               minutes=60, location=event["place"], attendees=[person["email"]],
                               access_token=calendar_token)
    apis.mail.reply_to_email(email_id=email["email_id"], body="Confirmed.", access_token=mail_token)
    """
    event = {"title": title, "date": date, "start_time": start, "minutes": 60, "location": place}
    return Goal(
        f'{full_name(person)} has sent me an email with the subject "Invitation". Create the event that '
        "it describes in my calendar, one hour long, with the sender as its only attendee, and reply "
        '"Confirmed."',
        (find_contact(full_name(person)), fill(read), fill(act), DONE),
        (
            added("calendar.events", attendees=(person["email"],), **event),
            sent_email(scene, person["email"], "Re: Invitation", "Confirmed."),
        ),
        lookups=(
            "phone.search_contacts",
            "mail.search_emails",
            "mail.show_email",
            "mail.reply_to_email",
            "calendar.create_event",
        ),
    )


def eventplace(scene: Scene) -> Goal:
    event = scene.pick("calendar.events")
    what, field = scene.style.choice([("Where", "location"), ("At what time", "start_time")])
    code = """
    event = apis.calendar.search_events(query=<title>, access_token=calendar_token)[0]
    print(event)
    """
    return Goal(
        f'{what} does the event "{event["title"]}" of my calendar take '
        f"place{'?' if what == 'Where' else ' (HH:MM)?'}",
        (fill(code, title=event["title"]), fill("apis.supervisor.complete_task(answer=event[<f>])", f=field)),
        answer=event[field],
        lookups=("calendar.search_events",),
    )


def cancelday(scene: Scene) -> Goal:
    date = scene.pick("calendar.events")["date"]
    code = """
    for event in pages(apis.calendar.search_events, date=<date>, access_token=calendar_token):
        apis.calendar.delete_event(event_id=event["event_id"], access_token=calendar_token)
    """
    return Goal(
        f"Cancel (delete) all events in my calendar on {date}.",
        (fill(code, date=date), DONE),
        tuple(removed("calendar.events", row["id"]) for row in scene.rows("calendar.events", date=date)),
        lookups=("calendar.search_events", "calendar.delete_event"),
    )


def busyminutes(scene: Scene) -> Goal:
    date = scene.pick("calendar.events")["date"]
    answer = sum(row["minutes"] for row in scene.rows("calendar.events", date=date))
    code = """
    events = pages(apis.calendar.search_events, date=<date>, access_token=calendar_token)
    total = sum(event["minutes"] for event in events)
    print(total)
    """
    return Goal(
        f"How many minutes of events does my calendar have on {date} in total?",
        (fill(code, date=date), "apis.supervisor.complete_task(answer=total)"),
        answer=answer,
        lookups=("calendar.search_events",),
    )


def movewith(scene: Scene) -> Goal:
    person = scene.pick("phone.contacts")
    for row in scene.rng.sample(scene.rows("calendar.events"), 3):
        row["attendees"] = tuple(dict.fromkeys((*row["attendees"], person["email"])))
    date = scene.day(scene.rng.randrange(12, 30))
    rows = [row for row in scene.rows("calendar.events") if person["email"] in row["attendees"]]
    code = """
    for event in pages(apis.calendar.search_events, attendee=person["email"], access_token=calendar_token):
        apis.calendar.update_event(event_id=event["event_id"], date=<date>, access_token=calendar_token)
    """
    return Goal(
        f"Move all events of my calendar that {full_name(person)} attends to {date}, at the same times.",
        (find_contact(full_name(person)), fill(code, date=date), DONE),
        tuple(updated("calendar.events", row["id"], date=date) for row in rows),
        lookups=("phone.search_contacts", "calendar.search_events", "calendar.update_event"),
    )


def cancelnotify(scene: Scene) -> Goal:
    event = scene.pick("calendar.events")
    people = scene.rng.sample(scene.rows("phone.contacts"), scene.rng.randrange(2, 5))
    event["attendees"] = tuple(person["email"] for person in people)
    text = scene.style.choice(["Sorry, this is cancelled.", "We have to call this off."])
    read = """
    event = apis.calendar.search_events(query=<title>, access_token=calendar_token)[0]
    print(event)
    """
    act = """
    for address in event["attendees"]:
        apis.mail.send_email(recipient=address, subject=<title>, body=<text>, access_token=mail_token)
    apis.calendar.delete_event(event_id=event["event_id"], access_token=calendar_token)
    """
    title = event["title"]
    return Goal(
        f'Delete the event "{title}" from my calendar and email each attendee separately, with the title '
        f'of the event as the subject and the text "{text}"',
        (fill(read, title=title), fill(act, title=title, text=text), DONE),
        (
            removed("calendar.events", event["id"]),
            *(sent_email(scene, address, title, text) for address in event["attendees"]),
        ),
        lookups=("calendar.search_events", "mail.send_email", "calendar.delete_event"),
    )


def birthdays(scene: Scene) -> Goal:
    who = scene.style.choice(["friend", "sibling", "coworker"])
    year = int(scene.world.now[:4]) + 1
    people = scene.rows("phone.contacts", relationship=who)
    code = """
    people = pages(apis.phone.search_contacts, relationship=<who>, access_token=phone_token)
    print(people)
    """
    act = """
    for person in people:
        apis.calendar.create_event(title="Birthday of " + person["first_name"],
                                   date=<year> + person["birthday"][4:],
                                   start_time="09:00", minutes=30, access_token=calendar_token)
    """
    return Goal(
        f'Put the {year} birthdays of my {who}s into my calendar: an event "Birthday of <first name>" '
        f"each, at 09:00, 30 minutes long.",
        (fill(code, who=who), fill(act, year=str(year)), DONE),
        tuple(
            added(
                "calendar.events",
                title=f"Birthday of {person['first_name']}",
                date=f"{year}{person['birthday'][4:]}",
                start_time="09:00",
                minutes=30,
            )
            for person in people
        ),
        lookups=("phone.search_contacts", "calendar.create_event"),
    )


KINDS = (
    Kind("markread", 2, markread),
    Kind("countunread", 1, countunread),
    Kind("labelword", 2, labelword),
    Kind("replymail", 2, replymail),
    Kind("mailnote", 3, mailnote),
    Kind("invitation", 3, invitation),
    Kind("eventplace", 1, eventplace),
    Kind("cancelday", 1, cancelday),
    Kind("busyminutes", 1, busyminutes),
    Kind("movewith", 2, movewith),
    Kind("cancelnotify", 3, cancelnotify),
    Kind("birthdays", 3, birthdays),
)
